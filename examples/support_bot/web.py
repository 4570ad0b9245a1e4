"""The page and its events, on 127.0.0.1. Browsers reconnect by themselves with `Last-Event-ID`."""

import asyncio
import socket
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from examples.support_bot.terminal import run_turn
from examples.support_bot.turn import STAGES, Desk
from stayfast.turns import Answer, Budget
from stayfast.turns.events import parse_last_event_id

PAGE = Path(__file__).with_name("page.html")
MAX_KEPT = 100
MAX_QUESTION_CHARS = 2000
MAX_S = 60.0
_HEADERS = {"content-security-policy": "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
                                       "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"}


class BotPage:
    """The page and the latest turns, by the id that the page chose."""

    def __init__(self, desk: Desk, total_s: float) -> None:
        self._desk = desk
        self._total_s = total_s
        self._turns: OrderedDict[str, tuple[Answer, asyncio.Task[Budget]]] = OrderedDict()

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/", self.page), Route("/about", self.about), Route("/turn", self.events)])

    async def page(self, _: Request) -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=_HEADERS)

    async def about(self, _: Request) -> Response:
        """The installed parts, and the missing ones."""
        desk = self._desk
        return JSONResponse({"n_pages": desk.docs.n_pages, "n_passages": len(desk.docs.passages), "total_s": self._total_s,
                             "slow_s": dict(desk.slow_s), "without": dict(desk.without)})

    async def events(self, request: Request) -> Response:
        """The events of a new turn, or of an existing one after `Last-Event-ID`."""
        try:
            name = request.query_params.get("id", "")
            if not name or len(name) > 64:
                raise ValueError("id: must be a name for the turn")
            if name not in self._turns:
                self._turns[name] = self._start_turn(request)
                while len(self._turns) > MAX_KEPT:
                    self._turns.popitem(last=False)[1][1].cancel()
            answer, _ = self._turns[name]
            reader = answer.read(parse_last_event_id(request.headers.get("last-event-id", "")), late=True)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)

        async def stream() -> AsyncIterator[bytes]:
            async for event in reader:
                yield event.sse()

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    def _start_turn(self, request: Request) -> tuple[Answer, asyncio.Task[Budget]]:
        query = request.query_params
        question = query.get("question", "").strip()
        if not 0 < len(question) <= MAX_QUESTION_CHARS:
            raise ValueError(f"question: must be 1 to {MAX_QUESTION_CHARS} characters")
        slow_s = {stage: _parse_seconds(f"slow.{stage}", query[f"slow.{stage}"]) for stage in STAGES
                  if f"slow.{stage}" in query}
        total_s = _parse_seconds("total_s", query.get("total_s", str(self._total_s)))
        answer = Answer()
        work = run_turn(question, answer, replace(self._desk, slow_s={**self._desk.slow_s, **slow_s}), max(0.1, total_s))
        return answer, asyncio.get_running_loop().create_task(work)


def _parse_seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_S:
        raise ValueError(f"{name}: must be seconds, 0 to {MAX_S:g}")
    return seconds


async def serve(desk: Desk, port: int, total_s: float) -> None:
    """Serve until interrupted."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}/\n")
        sys.stdout.flush()
        config = uvicorn.Config(BotPage(desk, total_s).app(), log_level="error", timeout_graceful_shutdown=1, ws="none")
        await uvicorn.Server(config).serve([listening])
