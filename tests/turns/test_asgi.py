"""The deadline from the request: FastAPI and Starlette endpoints, called as an ASGI application."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from stayfast.turns import StepFailed, StepSkipped, current_budget, remaining
from stayfast.turns.asgi import with_budget


class Question(BaseModel):
    """A body."""

    text: str


api = FastAPI()


@api.post("/ask")
@with_budget(total=5.0, reserve={"answer": 4.0})
async def ask(question: Question, top_k: int = 3) -> dict[str, Any]:
    """Says what it has."""
    b = current_budget()
    return {"text": question.text, "top_k": top_k, "left": b.remaining(), "answer": await b.run(left, name="answer")}


@api.get("/slow")
@with_budget(total=0.05)
async def slow(request: Request) -> None:
    """Never ends by itself."""
    b = current_budget()
    assert request.url.path == "/slow"
    await b.run(asyncio.sleep, 60, name="sleep")


@api.get("/stuck")
@with_budget(total=0.05)
async def stuck() -> None:
    """Waits for what is no step."""
    await asyncio.sleep(60)


@api.get("/broken")
@with_budget(total=1)
async def broken() -> None:
    """Its failure is its own."""
    raise StepFailed("kb", "is broken")


@api.get("/alone")
@with_budget(total=1)
async def alone() -> None:
    """One of its steps is left alone."""
    raise StepSkipped("crm", "breaker open: 5 failures in a row")


@with_budget(total=5.0)
async def plain(request: Request) -> JSONResponse:
    """Of Starlette."""
    return JSONResponse({"path": request.url.path, "left": remaining()})


async def left() -> float:
    """What a step has."""
    return remaining()


class AskRequest(BaseModel):
    """A body, as many call theirs."""

    text: str


@api.post("/named")
@with_budget(total=5.0)
async def named(request: AskRequest) -> str:
    """Its body is called as Starlette calls the request."""
    return request.text


@with_budget(total=5.0)
async def bare(request: Any) -> JSONResponse:
    """Of Starlette, by a name only."""
    return JSONResponse(request.url.path)


def asked(app: Any, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """One request and its answer."""
    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            return await client.request(method, path, headers=headers, **more)

    return asyncio.run(main())


def test_with_budget_without_header_uses_its_own_total() -> None:
    """Parameters and body are parsed as usual; an endpoint without a Request parameter works."""
    answer = asked(api, "POST", "/ask?top_k=5", json={"text": "Why?"}).json()
    assert (answer["text"], answer["top_k"]) == ("Why?", 5)
    assert 0.5 < answer["left"] <= 1.0
    assert 4.5 < answer["answer"] <= 5.0
    assert "stayfast_request" not in asked(api, "GET", "/openapi.json").text


@pytest.mark.parametrize(("header", "said"), [
    ("x-stayfast-deadline-ms", "1000"), ("x-request-timeout", "1"), ("grpc-timeout", "1S")])
def test_with_budget_client_timeout_shortens_the_budget(header: str, said: str) -> None:
    """Reserves are shortened in proportion; a longer timeout has no effect."""
    answer = asked(api, "POST", "/ask", {header: said}, json={"text": ""}).json()
    assert answer["left"] <= 0.2
    assert 0.5 < answer["answer"] <= 1.0
    assert asked(Starlette(routes=[Route("/", plain)]), "GET", "/", {header: said}).json()["left"] <= 1.0
    answer = asked(api, "POST", "/ask", {"x-request-timeout": "500"}, json={"text": ""}).json()
    assert answer["answer"] <= 5.0


@pytest.mark.parametrize("path", ["/slow", "/stuck"])
def test_with_budget_out_of_time_is_504(path: str) -> None:
    answer = asked(api, "GET", path)
    assert answer.status_code == 504
    assert answer.json() == {"detail": "The time for this request is over."}


def test_with_budget_wrong_header_is_400_and_failures_stay_500() -> None:
    answer = asked(api, "GET", "/stuck", {"x-stayfast-deadline-ms": "soon"})
    assert answer.status_code == 400
    assert "x-stayfast-deadline-ms" in answer.json()["detail"]
    assert asked(api, "GET", "/alone").status_code == 503
    with pytest.raises(StepFailed):
        asked(api, "GET", "/broken")


def test_with_budget_disconnect_cancels_endpoint_and_steps() -> None:
    """No task is left."""
    cancelled: list[str] = []

    async def step(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(name)

    app = FastAPI()

    @app.post("/work")
    @with_budget(total=30)
    async def work(question: Question) -> None:
        await current_budget().gather(kb=step("kb"), web=step("web"))

    async def main() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        messages = iter([{"type": "http.request", "body": b'{"text": "Why?"}', "more_body": False}])

        async def receive() -> dict[str, Any]:
            message = next(messages, None)
            if message is None:
                await asyncio.sleep(0.02)
                return {"type": "http.disconnect"}
            return message

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": "/work", "raw_path": b"/work", "query_string": b"", "root_path": "",
            "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http", "app": app}
        await app(scope, receive, send)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return sent

    assert asyncio.run(main())[0]["status"] == 499
    assert sorted(cancelled) == ["kb", "web"]


def test_with_budget_parameter_named_request_of_another_type_is_a_body() -> None:
    """Without an annotation it is Starlette's Request."""
    answer = asked(api, "POST", "/named", json={"text": "Why?"})
    assert (answer.status_code, answer.json()) == (200, "Why?")
    assert asked(Starlette(routes=[Route("/bare", bare)]), "GET", "/bare").json() == "/bare"


def test_with_budget_plain_function_raises_with_the_correction() -> None:
    endpoint: Any = len
    with pytest.raises(TypeError, match="write `async def`"):
        with_budget(1.0)(endpoint)
