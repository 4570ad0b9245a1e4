"""How one route uses its providers' prompt caches: what it has learned about them, and what it adds to each request.

A route with `prefix.mode: off` has no PromptCachePlanner. It stores digests of prompts, never their text; only the
diagnostics store instructions.

Leaders. Problem: a cached prefix can be read only after the first token of the request that wrote it. Twenty simultaneous
requests with the same ten thousand words pay the whole price twenty times. Rule: while a request with the same beginning
waits for its first token, others wait for it, for at most `leader_wait_s` and a quarter of their time; then all are sent.
When wrong: if the leader is slow for another reason, the others have waited in vain.
"""

import asyncio
from collections.abc import Hashable
from hashlib import sha256
from typing import Final

from msgspec.structs import replace

from stayfast.core.clock import Clock
from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import Sink
from stayfast.core.types import Api, Request, Usage
from stayfast.pipeline.prompt_cache.diagnostics import Kind, MarkedPrompt, PrefixDiagnostics
from stayfast.policy.admission.price import Price
from stayfast.policy.prompt_cache.breakpoints import FLOOR_MARGIN, MarkDecision, PrefixConfig, PromptHistory, PromptSizes
from stayfast.policy.prompt_cache.learned import (
    KEY,
    CacheKeyParts,
    HotPrefixes,
    PrefixRefresh,
    RejectedFields,
    TokenFloor,
    TokenScale,
)
from stayfast.policy.prompt_cache.rules import HOUR_S, PrefixRules, rules_of
from stayfast.wire.prompt import LAYOUT_APIS, PromptLayout, has_cache_markers, marker_field, order_blocks

MAX_WARM: Final = 4096


class PrefixLeaders:
    """The prefixes that are cached, by upstream and model, and those that are being written. Belongs to one loop."""

    __slots__ = ("_clock", "_running", "_warm_until", "n_waited")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[Hashable, asyncio.Future[None]] = {}
        self._warm_until: dict[Hashable, float] = {}
        self.n_waited = 0

    def find_leader(self, key: Hashable) -> "asyncio.Future[None] | None":
        """The leader to wait for; None: do not wait."""
        running = self._running.get(key)
        return None if running is None or running.done() else running

    def try_to_lead(self, key: Hashable) -> "asyncio.Future[None] | None":
        """Register a request that is sent. It leads if no other request leads and the prefix is not cached; pass the result
        to `stop_leading`. None: it does not lead.
        """
        if key in self._running or self._warm_until.get(key, 0.0) > self._clock.now():
            return None
        self._running[key] = lead = asyncio.get_running_loop().create_future()
        return lead

    def mark_cached(self, key: Hashable, keeps_s: float) -> None:
        """The first token arrived: the prefix is cached for `keeps_s` from now on."""
        self._warm_until.pop(key, None)
        self._warm_until[key] = self._clock.now() + keeps_s
        if len(self._warm_until) > MAX_WARM:
            del self._warm_until[next(iter(self._warm_until))]
        lead = self._running.pop(key, None)
        if lead is not None and not lead.done():
            lead.set_result(None)

    def stop_leading(self, key: Hashable, lead: "asyncio.Future[None]") -> None:
        """The leader has ended; if it cached nothing, another request may lead."""
        if self._running.get(key) is lead:
            del self._running[key]
        if not lead.done():
            lead.set_result(None)


MAX_KINDS: Final = 64  # of prompts: combinations of upstream, model, set of tools
MAX_HEADS: Final = 256  # beginnings, for keys
MAX_MODELS: Final = 256  # a wildcard route takes any name from clients
LEAST_BYTES: Final = 2048  # no provider caches shorter prompts
_ANTHROPIC: Final = b'{"type":"ephemeral"}'
_ANTHROPIC_1H: Final = b'{"type":"ephemeral","ttl":"1h"}'
_OPENAI: Final = b'{"mode":"explicit"}'
_BAD_REQUEST, _UNPROCESSABLE = 400, 422  # statuses for an unknown field


class PromptCachePlanner:
    """The planner of one route. Belongs to one loop; survives a reload with unchanged settings."""

    __slots__ = ("_clock", "_floors", "_histories", "_parts", "_refusals", "_scales", "config", "counts", "findings", "hot",
                 "leads", "route", "rules", "tokens")

    def __init__(self, route: str, config: PrefixConfig, clock: Clock, sink: Sink) -> None:
        self.route = route
        self.config = config
        self.counts: dict[tuple[str, str], int] = {}  # requests by upstream and result
        self.tokens: dict[tuple[str, str], int] = {}  # of input, by upstream and kind: read, written, plain
        self.rules: dict[tuple[str, str], PrefixRules | None] = {}  # in use, by upstream and model
        self.findings = PrefixDiagnostics(route, clock, sink)
        self.leads = PrefixLeaders(clock)
        self.hot = HotPrefixes(config.refresh_tokens_per_hour) if config.refresh_tokens_per_hour else None
        self._clock = clock
        self._histories: dict[Kind, PromptHistory] = {}
        self._floors: dict[tuple[str, str], TokenFloor] = {}  # by upstream and model
        self._refusals: dict[tuple[str, str], RejectedFields] = {}  # the same
        self._scales: dict[str, TokenScale] = {}
        self._parts: dict[tuple[str, str, int], CacheKeyParts] = {}  # by upstream, model and how prompts begin

    def plan_prompt(self, request: Request) -> "tuple[Request, PlannedPrompt | None]":
        """The request in its stable order, and the plan for its attempts; None: nothing to do."""
        if request.api not in LAYOUT_APIS or len(request.body) < LEAST_BYTES or has_cache_markers(request.body):
            return request, None
        config = self.config
        try:
            ordered = order_blocks(request.body, request.api, sort_tools=config.sort_tools,
                                   move_volatile=config.move_volatile)
        except (ValueError, RecursionError):  # a form that only the upstream understands
            return request, None
        layout = PlannedPrompt(self, ordered.head, ordered.first, ordered.tools)
        return request if ordered.body is request.body else replace(request, body=ordered.body), layout

    def rules_for(self, upstream: str, model: str, n_head_bytes: int) -> PrefixRules | None:
        """The rules of a model; None: unknown, or the beginning is too short for its cache. An unknown name gets rules by
        the protocol of its first request.
        """
        rules = self.rules.get((upstream, model)) or rules_of(model, self.config.models)
        if rules is None:
            return None
        n_tokens = n_head_bytes / self._scale(model).bytes_a_token
        return rules if n_tokens >= self._floor(upstream, model, rules).tokens(self._clock.now()) * FLOOR_MARGIN else None

    def partition_of(self, upstream: str, model: str, layout: "PlannedPrompt") -> int:
        """The partition of this request among those with the same beginning; call once a request."""
        now, key = self._clock.now(), (upstream, model, layout.head)
        self._parts[key] = parts = self._parts.pop(key, None) or CacheKeyParts(now, is_of_agents=bool(layout.tools))
        if len(self._parts) > MAX_HEADS:
            del self._parts[next(iter(self._parts))]
        return parts.part_for(layout.conversation, now)

    def mark_body(self, marker: "AttemptMarker", body: bytes, api: Api) -> bytes:
        """The body to send; records the decisions in the marker. Raises ValueError like `PromptLayout`."""
        rules = self._find_rules(api, marker)
        if rules is None or api not in LAYOUT_APIS or has_cache_markers(body) or b'"previous_response_id"' in body:
            return body
        laid = PromptLayout(body, api)
        if not laid.n_end:
            return body
        now, kind = self._clock.now(), (marker.upstream, marker.model, marker.layout.tools)
        scale, floor = self._scale(marker.model), self._floor(marker.upstream, marker.model, rules)
        rules, refusals = rules.for_api(api), self._refusals.get((marker.upstream, marker.model))
        if refusals is not None:
            rules = refusals.apply_to(rules, now)
        shape = _measure_prompt(laid, scale.bytes_a_token)
        if kind not in marker.layout.kinds:
            history = self._history(kind, now)
            marker.layout.kinds[kind] = history, history.place_marks(shape, rules, floor.tokens(now), self.config, now)
        marker.history, marked = marker.layout.kinds[kind]
        marker.rules, marker.marked = rules, marked
        marker.n_bytes = round(shape.tokens[-1] * scale.bytes_a_token)
        marker.n_marked = shape.tokens[marked.at[-1] - 1] if marked.at else 0.0
        self.findings.inspect(kind, laid, shape, marker, is_moving=marked.is_moving,
                              seems_moving=marker.history.seems_moving)
        if self.hot is not None and rules.marks == "anthropic":
            self._record_hot_prefix(marker, laid, shape, marked, now)
        at = marked.at if rules.most_marks else ()  # marks were decided for an earlier attempt, and refused since
        marks = {n: _encode_mark(rules, is_long=marked.is_long and n <= marked.n_static) for n in at}
        extra_fields = {}
        if rules.has_key and api is not Api.MESSAGES and marked.n_static and b'"prompt_cache_key"' not in body:
            extra_fields[KEY] = self._make_cache_key(laid, marked.n_static, marker.layout.partition_of(marker.upstream,
                                                                                                       marker.model))
        marker.wrote = (*([marker_field(api)] if marks else ()), *extra_fields)
        return laid.write_with_markers(marks, extra_fields) if marker.wrote else body

    def _find_rules(self, api: Api, marker: "AttemptMarker") -> PrefixRules | None:
        """The rules by the model's name, or else by the protocol. Stored for /debug/state."""
        rules = rules_of(marker.model, self.config.models, is_anthropic=api is Api.MESSAGES)
        if api in LAYOUT_APIS:
            self.rules[marker.upstream, marker.model] = rules
            if len(self.rules) > MAX_MODELS:
                del self.rules[next(iter(self.rules))]
        return rules

    def _record_hot_prefix(self, marker: "AttemptMarker", laid: PromptLayout, shape: PromptSizes, marked: MarkDecision,
                  now: float) -> None:
        n = laid.n_markable_blocks(marked.n_static)
        if self.hot is None or n not in marked.at:
            return
        key = (marker.upstream, marker.model, shape.chain[n - 1])
        if not self.hot.record_use(key, now):
            rules = marker.rules or PrefixRules()
            keeps_s = HOUR_S if marked.is_long else rules.keeps_s
            opening = laid.make_prefix_request(n, _encode_mark(rules, is_long=marked.is_long))
            self.hot.add(PrefixRefresh(marker.upstream, marker.model, opening, shape.tokens[n - 1], keeps_s), key, now)

    def note_usage(self, marker: "AttemptMarker", usage: Usage) -> None:
        """Learn from the reported usage of a planned prompt."""
        n_read, n_written = usage.cached_read, usage.cache_write_5m + usage.cache_write_1h
        self._count(marker.upstream, "read" if n_read else "written" if n_written else "missed")
        tokens = self.tokens
        for what, n in (("read", n_read), ("written", n_written), ("plain", usage.uncached - n_written)):
            tokens[marker.upstream, what] = tokens.get((marker.upstream, what), 0) + max(0, n)
        self._scale(marker.model).record_usage(marker.n_bytes, usage.input_total)
        marked, history, rules, now = marker.marked, marker.history, marker.rules, self._clock.now()
        if marked is None or history is None or rules is None or not marked.at or not rules.most_marks:
            return
        floor = self._floor(marker.upstream, marker.model, rules)
        floor.record_usage(marker.n_marked, n_read=n_read, n_written=n_written, now=now)
        if history.record_usage(was_known=marked.is_known, n_read=n_read, n_written=n_written, now=now):
            self.findings.note_unread(marker)

    def note_refused(self, marker: "AttemptMarker", members: tuple[str, ...]) -> None:
        """The upstream rejected these fields by name, and answered the request without them."""
        now, key = self._clock.now(), (marker.upstream, marker.model)
        refusals = self._refusals.setdefault(key, RejectedFields())
        if len(self._refusals) > MAX_MODELS:
            del self._refusals[next(iter(self._refusals))]
        for member in members:
            refusals.add(member, now)
            self.findings.note_refused(marker, member)
        self._count(marker.upstream, "refused")

    def note_refresh(self, opening: PrefixRefresh, usage: Usage | None) -> None:
        """A refresh ended. usage: None: it failed; without cached tokens the cached prefix had expired, and was written
        anew.
        """
        in_time = usage is not None and usage.cached_read > 0
        self._count(opening.upstream, "refreshed" if in_time else "refresh_failed")

    def _make_cache_key(self, laid: PromptLayout, n_static: int, part: int) -> bytes:
        """OpenAI's cache key: the same for one beginning and partition."""
        digest = sha256(self.route.encode())
        for block in laid.blocks[:n_static]:
            digest.update(block.data)
        key = digest.hexdigest()[:32]
        return (f'"{key}-{part:x}"' if part else f'"{key}"').encode()

    def _history(self, kind: Kind, now: float) -> PromptHistory:
        found = self._histories.pop(kind, None) or PromptHistory(now)
        self._histories[kind] = found  # the newest last
        if len(self._histories) > MAX_KINDS:
            del self._histories[next(iter(self._histories))]
        return found

    def _floor(self, upstream: str, model: str, rules: PrefixRules) -> TokenFloor:
        key = upstream, model
        if key not in self._floors:
            self._floors[key] = TokenFloor(rules.min_tokens)
            if len(self._floors) > MAX_MODELS:
                del self._floors[next(iter(self._floors))]
        return self._floors[key]

    def _scale(self, model: str) -> TokenScale:
        if model not in self._scales:
            self._scales[model] = TokenScale()
            if len(self._scales) > MAX_MODELS:
                del self._scales[next(iter(self._scales))]
        return self._scales[model]

    def _count(self, upstream: str, result: str) -> None:
        self.counts[upstream, result] = self.counts.get((upstream, result), 0) + 1

    @property
    def n_seen(self) -> int:
        """Requests in the histories of its prompts."""
        return sum(history.n_seen for history in self._histories.values())

    def __repr__(self) -> str:
        return (f"<PromptCachePlanner {self.route}: {len(self._histories)} kinds of prompts, "
                f"{len(self.findings.all)} findings>")


class PlannedPrompt:
    """The plan of one request. kinds: the decisions, so that all its attempts are marked alike."""

    __slots__ = ("_n_head_bytes", "_of", "_parts", "conversation", "head", "kinds", "tools")

    def __init__(self, of: PromptCachePlanner, head: bytes, first: bytes, tools: tuple[str, ...]) -> None:
        self._of = of
        self._n_head_bytes = len(head)
        self._parts: dict[tuple[str, str], int] = {}
        self.head = hash(head)
        self.conversation = hash(first)
        self.tools = tools
        self.kinds: dict[Kind, tuple[PromptHistory, MarkDecision]] = {}

    def partition_of(self, upstream: str, model: str) -> int:
        if (upstream, model) not in self._parts:
            self._parts[upstream, model] = self._of.partition_of(upstream, model, self)
        return self._parts[upstream, model]

    def find_leaders(self, upstream: str, model: str) -> "tuple[PrefixLeaders, Hashable] | None":
        """The leaders of the upstream and model, and the key of this prompt's prefix; None: no request waits for a leader.
        """
        of = self._of
        rules = of.rules_for(upstream, model, self._n_head_bytes) if of.config.leader_wait_s else None
        if rules is None:
            return None
        return of.leads, (upstream, model, self.head, self.partition_of(upstream, model) if rules.has_key else 0)

    @property
    def wait_s(self) -> float:
        """The longest wait for a leader."""
        return self._of.config.leader_wait_s

    def new_marker(self, upstream: str, model: str, price: Price | None) -> "AttemptMarker":
        return AttemptMarker(self, self._of, upstream, model, price)


class AttemptMarker(MarkedPrompt):
    """One attempt's `upstreams.base.AttemptMarker`."""

    __slots__ = ("_lead", "_leads", "_of", "_refused", "layout", "marked", "n_bytes", "wrote")

    def __init__(self, layout: PlannedPrompt, of: PromptCachePlanner, upstream: str, model: str,
                 price: Price | None) -> None:
        super().__init__(upstream, model, price)
        self.layout = layout
        self.marked: MarkDecision | None = None
        self.n_bytes = 0  # of the prompt
        self.wrote: tuple[str, ...] = ()  # names of the fields that were added
        self._refused: tuple[str, ...] = ()  # those that the upstream's error named
        self._of = of
        self._leads = layout.find_leaders(upstream, model)
        self._lead = self._leads[0].try_to_lead(self._leads[1]) if self._leads is not None else None

    def write(self, body: bytes, api: Api) -> bytes:
        if self._refused:
            return body
        try:
            return self._of.mark_body(self, body, api)
        except (ValueError, RecursionError):  # a form that only the upstream understands
            return body

    def is_refused(self, failed: UpstreamFailed) -> bool:
        if failed.upstream_status in (_BAD_REQUEST, _UNPROCESSABLE) and not self._refused:
            self._refused = tuple(name for name in self.wrote if name.encode() in failed.body)
            self.rules = None if self._refused else self.rules
            return bool(self._refused)
        return False

    def on_first_token(self) -> None:
        """From now on other requests can read the prefix that this one wrote to the cache."""
        if self._refused:
            self._of.note_refused(self, self._refused)
        if self._leads is not None:
            rules = self.rules
            self._leads[0].mark_cached(self._leads[1], rules.keeps_s if rules is not None else 0.0)

    def on_end(self, usage: Usage | None) -> None:
        if self._lead is not None and self._leads is not None:
            self._leads[0].stop_leading(self._leads[1], self._lead)
        if usage is not None and usage.input_total and self.rules is not None:
            self._of.note_usage(self, usage)


def _measure_prompt(laid: PromptLayout, bytes_a_token: float) -> PromptSizes:
    chain: list[int] = []
    tokens: list[float] = []
    link, n_bytes = 0, 0
    for block in laid.blocks:
        link = hash((link, block.head, block.data))
        n_bytes += len(block.head) + len(block.data)
        chain.append(link)
        tokens.append(n_bytes / bytes_a_token)
    return PromptSizes(chain, tokens, laid.n_static, laid.n_before, laid.n_end, laid.n_markable_blocks)


def _encode_mark(rules: PrefixRules, *, is_long: bool) -> bytes:
    if rules.marks == "openai":
        return _OPENAI
    return _ANTHROPIC_1H if is_long else _ANTHROPIC
