"""The health endpoint of an engine: whether its server runs. Not whether it is ready: vLLM's says yes while a first answer
still compiles, so readiness is a real token (`pipeline.attempts.readiness`). What it can tell early is "no": a model that
loads, or an engine that died.

A path that a version does not have (404, 405, 501) is skipped for the next one: SGLang 0.5 has /ready, 0.4 only /health,
which generates a token in steps of a second and needs more than 2 s.
"""

from collections.abc import Sequence
from typing import Final

from stayfast.core.errors import StayfastError
from stayfast.http.client.client import HttpClient

MAX_BODY_BYTES: Final = 64 * 1024
_OK: Final = 200
_ABSENT: Final = (404, 405, 501)


class HealthEndpoint:
    """Of one engine. Task-safe."""

    __slots__ = ("_client", "_headers", "_paths", "_timeout_s")

    def __init__(self, client: HttpClient, paths: Sequence[str], timeout_s: float,
                 headers: Sequence[tuple[str, str]] = ()) -> None:
        """client: at the root of the engine's address. paths: in order of preference."""
        self._client = client
        self._paths = paths
        self._timeout_s = timeout_s
        self._headers = headers

    async def check(self) -> bool | None:
        """Whether its server says that it serves; None: it has no such endpoint. Never raises."""
        for path in self._paths:
            try:
                answer = await self._client.fetch("GET", f"{self._client.base_path}{path}", self._headers,
                                                  timeout_s=self._timeout_s, max_body_bytes=MAX_BODY_BYTES)
            except StayfastError:
                return False
            if answer.status not in _ABSENT:
                return answer.status == _OK
        return None
