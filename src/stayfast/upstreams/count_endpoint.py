"""An upstream's own count of a request's input tokens, with a time limit.

An upstream without such an endpoint (404, 405, 501) is not called again for OFF_S.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from urllib.parse import quote

from stayfast.core.clock import Clock
from stayfast.core.constants import LARGE_REQUEST_BYTES
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api
from stayfast.http.client.client import HttpClient
from stayfast.upstreams.base import Call
from stayfast.wire.count_bodies import CountForm, encode_count_body
from stayfast.wire.token_counts import UpstreamCount, parse_upstream_count

COUNT_S: Final = 2.0
DEADLINE_SHARE: Final = 0.5  # of the remaining time, at most
OFF_S: Final = 600.0
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024  # with the ids of a million tokens
_ABSENT: Final = (404, 405, 501)
_PATHS: Final = {
    CountForm.MESSAGES: "/messages/count_tokens", CountForm.RESPONSES: "/responses/input_tokens",
    CountForm.TOKENIZE: "/tokenize", CountForm.GEMINI: "/models/{model}:countTokens",
    CountForm.VERTEX: "/models/{model}:countTokens", CountForm.BEDROCK: "/model/{model}/count-tokens"}
MakeHeaders = Callable[[str, str, bytes], Sequence[tuple[str, str]]]  # of a method, a path and a body


def choose_form(kind: str, apis: frozenset[Api], base_path: str) -> CountForm:
    """The count endpoint of an upstream of this kind. An OpenAI-compatible one without the responses API is an engine."""
    match kind:
        case "anthropic":
            return CountForm.MESSAGES
        case "gemini":
            return CountForm.VERTEX if "/projects/" in base_path else CountForm.GEMINI
        case "bedrock":
            return CountForm.BEDROCK
    return CountForm.RESPONSES if Api.RESPONSES in apis else CountForm.TOKENIZE


class CountEndpoint:
    """Of one upstream. Task-safe."""

    __slots__ = ("_client", "_clock", "_form", "_make_headers", "_off_until", "_path")

    def __init__(self, form: CountForm, client: HttpClient, clock: Clock, make_headers: MakeHeaders) -> None:
        base = client.base_path.removesuffix("/v1") if form is CountForm.TOKENIZE else client.base_path
        self._form = form
        self._path = base + _PATHS[form]
        self._client = client
        self._clock = clock
        self._make_headers = make_headers
        self._off_until = 0.0

    async def fetch(self, call: Call) -> UpstreamCount | None:
        """The count; None if the upstream gave none in time, or cannot count this request."""
        now = self._clock.now()
        if now < self._off_until:
            return None
        timeout_s = min(COUNT_S, call.deadline.remaining_s(now) * DEADLINE_SHARE)
        try:
            work = partial(encode_count_body, call.request, self._form, call.model)
            body = await asyncio.to_thread(work) if len(call.request.body) > LARGE_REQUEST_BYTES else work()
            if body is None or timeout_s <= 0:
                return None
            path = self._path.replace("{model}", quote(call.model.removeprefix("models/"), safe=""))
            headers = [("content-type", "application/json"), ("accept", "application/json"),
                       ("accept-encoding", "identity"), *self._make_headers("POST", path, body)]
            answer = await self._client.fetch("POST", path, headers, body, timeout_s=timeout_s,
                                              max_body_bytes=MAX_ANSWER_BYTES)
        except StayfastError:  # not translatable, no credential, not reachable, too slow: it is counted here
            return None
        if answer.status in _ABSENT:
            self._off_until = now + OFF_S
        return parse_upstream_count(answer.body) if answer.status == 200 else None
