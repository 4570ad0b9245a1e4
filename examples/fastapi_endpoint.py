"""A FastAPI endpoint with a deadline from its client.

The client sends its timeout in `x-stayfast-deadline-ms`; the endpoint's total is the upper limit. Run it with any ASGI
server: `uvicorn examples.fastapi_endpoint:app`.
"""

import asyncio

from fastapi import FastAPI
from pydantic import BaseModel

from stayfast.turns import HedgePolicy, current_budget, remaining, step
from stayfast.turns.asgi import with_budget

app = FastAPI()
searching = HedgePolicy()  # learns from all requests when a second search helps


class Question(BaseModel):
    """The request."""

    text: str
    customer: str


class Answer(BaseModel):
    """The response; `missing`: the reason per missing part."""

    text: str
    missing: dict[str, str]
    seconds_left: float


async def search(text: str) -> list[str]:
    """Stands for a vector search: a read, so it may run twice."""
    await asyncio.sleep(0.02)
    return [f"a page about {text}"]


def look_up(customer: str) -> str:
    """Stands for a blocking driver: it runs in a thread."""
    return f"{customer} is a customer"


async def model(text: str, pages: list[str]) -> str:
    """Stands for a model's client, with the time left as its timeout."""
    await asyncio.sleep(min(0.05, remaining()))
    return f"{text}: see {len(pages)} page(s)"


@app.post("/ask")
@with_budget(total=4.0, reserve={"answer": 1.6})
async def ask(question: Question) -> Answer:
    """One turn."""
    b = current_budget()
    found = await b.gather(pages=step(search, question.text, cap=0.6, hedge=searching),
                           customer=step(look_up, question.customer, cap=0.3), need=1, by=0.5)
    text = await b.run(model, question.text, found.get("pages", []), name="answer", fallback="I do not know yet.")
    missing = {name: f"{why.reason}: {why.detail}" for name, why in found.missing.items()}
    return Answer(text=text, missing=missing, seconds_left=b.remaining())
