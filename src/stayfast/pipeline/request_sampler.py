"""Samples ended requests: the shape of their prompts, and what their upstreams' rate-limit headers report.

At most every CHECK_EVERY_S a request is examined: a prompt is sampled at most every PROMPT_EVERY_S, and the headers of each
upstream at most every HEADERS_EVERY_S. Any other request costs a comparison. The sampled request is measured after its
answer was sent. Its text is only read inside of the call; sizes and digests remain.
"""

from collections.abc import Mapping
from typing import Final

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.events import RequestDone, Sink
from stayfast.core.samples import PromptSampled, QuotaReported
from stayfast.pipeline.exchange import Exchange
from stayfast.pipeline.prompt_versions import PromptVersions
from stayfast.wire.prompt_shape import PromptOutline, measure_prompt
from stayfast.wire.rate_headers import parse_headroom

CHECK_EVERY_S: Final = 0.1
PROMPT_EVERY_S: Final = 0.5
HEADERS_EVERY_S: Final = 1.0
MAX_ROUTES: Final = 256  # with digests of their last prompt
MAX_BODIES: Final = 4096  # of which a repetition is noticed: half an hour of samples
LONG_MESSAGE_TOKENS: Final = 400  # people rarely write that much; the rest is a document
_HEADS: Final = (b'"system"', b'"developer"', b'"instructions"', b'"tools"')
_UNMEASURED: Final = PromptOutline()


class RequestSampler:
    """For one event loop. Instants are those of the requests' ends."""

    __slots__ = ("_bodies", "_headers_at", "_pieces", "_prompt_at", "_sink", "_versions", "due_at")

    def __init__(self, sink: Sink, versions: PromptVersions | None = None) -> None:
        """versions: of system prompts; None: they are not counted."""
        self._sink = sink
        self._versions = versions
        self.due_at = 0.0  # requests that end before need no `note_end`
        self._prompt_at = 0.0  # when the next prompt is due
        self._headers_at: dict[str | None, float] = {}  # by upstream: when its next headers are due
        self._pieces: dict[str, tuple[int, ...]] = {}  # by route: of the last sampled prompt
        self._bodies: dict[tuple[str, int], None] = {}  # digests of deterministic requests, oldest first

    def note_end(self, ex: Exchange, done: RequestDone) -> None:
        """A request ended, at `due_at` or later. Never raises for a prompt of unknown form."""
        now = done.ended_at
        self.due_at = now + CHECK_EVERY_S
        if now >= self._headers_at.get(done.upstream, 0.0):
            self._headers_at[done.upstream] = now + HEADERS_EVERY_S
            self._report_headers(ex, now)
        if now >= self._prompt_at and done.route is not None and not done.role:
            self._prompt_at = now + PROMPT_EVERY_S
            self._sink.emit(self._sample(ex, done, done.route))

        if self._versions is not None and done.status == 200 and not done.role and _may_have_head(ex.request.body):
            self._note_version(self._versions, ex, done)

    def _note_version(self, versions: PromptVersions, ex: Exchange, done: RequestDone) -> None:
        seen = versions.by_route.get(done.route)
        if seen is not None and done.ended_at < seen.due_at:
            seen.count(ex.request.body, done)
        else:
            versions.note_sample(ex.request, done, ex.record.attempts)

    def _report_headers(self, ex: Exchange, now: float) -> None:
        for attempt in ex.record.attempts:
            headers = getattr(attempt.stream, "headers", None)
            if isinstance(headers, Mapping) and (left := parse_headroom(headers)):
                self._sink.emit(QuotaReported(attempt.name, now, left))

    def _sample(self, ex: Exchange, done: RequestDone, route: str) -> PromptSampled:
        request, usage = ex.request, done.usage
        shape = measure_prompt(request)
        known = shape or _UNMEASURED
        n_input = _input_tokens(ex, done)
        is_text = known.n_bytes and not known.n_images  # else the count includes tokens of images
        a_token = n_input / known.n_bytes if is_text else 1.0 / BYTES_A_TOKEN
        n_last = (known.n_last - known.n_results) * a_token
        n_retrieved = known.n_results * a_token + (n_last if n_last >= LONG_MESSAGE_TOKENS else 0.0)
        attempt = ex.record.attempts[-1].done if len(ex.record.attempts) == 1 else None
        is_ok = attempt is not None and done.status == 200
        return PromptSampled(
            route, done.ended_at, n_input, known.n_system * a_token, known.n_tools * a_token, known.n_history * a_token,
            n_retrieved, known.n_messages, request.max_output_tokens, known.bias_digest, known.n_images,
            ex.arrival.silence_s, self._compare(route, known) if shape is not None else None,
            usage.output if usage is not None else None,
            attempt.ttft_s if is_ok and attempt is not None and request.stream else None,
            attempt.ended_at - attempt.began_at if is_ok and attempt is not None else None,
            done.upstream or "", attempt.n_running if attempt is not None else None, shape is not None,
            self._is_repeated(route, known))

    def _is_repeated(self, route: str, shape: PromptOutline) -> bool:
        """Whether an equal body was sampled before; from now on it was."""
        if shape.body_digest is None:
            return False
        key = (route, shape.body_digest)
        is_known = key in self._bodies
        self._bodies[key] = None
        if len(self._bodies) > MAX_BODIES:
            del self._bodies[next(iter(self._bodies))]
        return is_known

    def _compare(self, route: str, shape: PromptOutline) -> float | None:
        """The share of the prompt that the route's last sample had, too; the digests replace those of the last sample."""
        before = self._pieces.pop(route, None)
        if before is None and len(self._pieces) >= MAX_ROUTES:
            del self._pieces[next(iter(self._pieces))]
        self._pieces[route] = shape.pieces
        return shape.shared_ratio(before) if before is not None else None


def _may_have_head(body: bytes) -> bool:
    """Whether the body may have instructions or tools; some words of a message look the same."""
    return any(mark in body for mark in _HEADS)


def _input_tokens(ex: Exchange, done: RequestDone) -> float:
    """As the upstream reported, else as `policy.context.token_estimate` estimates."""
    if done.usage is not None and done.usage.input_total:
        return done.usage.input_total
    if ex.record.attempts:
        return ex.record.attempts[-1].estimate_input()
    return len(ex.request.body) / BYTES_A_TOKEN
