"""POST /v1/classify: the labels of texts, by a classifier of the settings."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.errors import Rejected, Shed
from stayfast.http.server.asgi import Message, Scope
from stayfast.keys.principal import allows_route
from stayfast.pipeline.classify.classifier import TextClassifier
from stayfast.policy.classify.head import Classification
from stayfast.server.backend import ActiveSystem
from stayfast.stores.embedder import EmbedderBusy, NoEmbedder
from stayfast.wire.classify.endpoint import ClassifiedInput, decode_classify_request, encode_classify_reply

MAX_RUNNING: Final = 64  # requests that wait for an encoder
WAIT_S: Final = 5.0  # for the encoder, by one request
N_AT_ONCE: Final = 8  # texts between two turns of the event loop
_P_DIGITS: Final = 6
_RETRY_S: Final = 1.0


class ClassifyEndpoint:
    """Of one loop. Task-safe."""

    __slots__ = ("_clock", "_current", "_n_running")

    def __init__(self, current: ActiveSystem, clock: Clock) -> None:
        self._current = current
        self._clock = clock
        self._n_running = 0

    async def answer(self, scope: Scope, receive: Callable[[], Awaitable[Message]]) -> bytes:
        """The body of the answer. Raises Rejected, Shed."""
        request = decode_classify_request(await _read_body(receive))
        known, caller = self._current.backend.text_classifiers, scope["state"]["caller"]
        classifier = known.get(request.model)
        if classifier is None:
            listed = ", ".join(sorted(name for name in known if allows_route(caller, name))) or "none"
            raise Rejected(f"There is no classifier {request.model[:128]!r}. Classifiers here: {listed}.", status=404,
                           code="classifier_not_found", param="model")
        if caller is not None:
            caller.check_route(request.model)
        if self._n_running >= MAX_RUNNING:
            raise Shed("Too many texts are being classified at the same time.", reason="classify_busy", status=429,
                       code="classify_busy", retry_after_s=_RETRY_S)
        self._n_running += 1
        try:
            found = await self._classify(classifier, request.texts)
        except EmbedderBusy as busy:
            raise Shed("Too many texts wait for the classifier's embedder.", reason="classify_busy", status=429,
                       code="classify_busy", retry_after_s=busy.retry_after_s or _RETRY_S) from None
        except (NoEmbedder, TimeoutError):
            raise Shed(f"The classifier {request.model!r} cannot compute vectors now: its embedder is not loaded, or is too "
                       "slow. The operator's log has the cause.", reason="classifier_not_ready",
                       code="classifier_not_ready", retry_after_s=_RETRY_S) from None
        finally:
            self._n_running -= 1
        data = [ClassifiedInput(n, one.label, [round(p, _P_DIGITS) for p in one.probabilities], len(classifier.labels),
                                one.nearest, round(one.p, _P_DIGITS)) for n, one in enumerate(found)]
        return encode_classify_reply(scope["state"]["request_id"], int(self._clock.wall()), request.model, classifier.labels,
                                     data)

    async def _classify(self, classifier: TextClassifier, texts: list[str]) -> list[Classification]:
        found: list[Classification] = []
        ends_at = self._clock.now() + WAIT_S
        for begin in range(0, len(texts), N_AT_ONCE):
            found += await asyncio.gather(*(classifier.classify(text, ends_at, second_wait_s=WAIT_S)
                                            for text in texts[begin:begin + N_AT_ONCE]))
            await asyncio.sleep(0)
        return found


async def _read_body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message["body"])
        if not message.get("more_body", False):
            return b"".join(parts)
