"""How one route chooses among its upstreams by affinity, weights and ejection. A route with none of them has no selector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from msgspec import Struct

from stayfast.core.constants import BYTES_A_TOKEN, MAX_NAME
from stayfast.core.engine_signals import EngineSignals
from stayfast.core.events import AttemptDone, Ejected, Fanout, Sink
from stayfast.core.types import AnswerSummary, Api, Request, Usage
from stayfast.pipeline.routing.exact_prefixes import ExactPrefixes
from stayfast.pipeline.routing.prefix_beliefs import PrefixBeliefs, SentPrompt
from stayfast.policy.admission.price import Prices
from stayfast.policy.routing.affinity import BLOCK_BYTES as BLOCK
from stayfast.policy.routing.affinity import AffinityConfig, hash_blocks, session_owner
from stayfast.policy.routing.load_balancing import CandidateLoad, order_as_listed, order_by_weight, weigh_load
from stayfast.policy.routing.outlier_ejection import EjectConfig, Outliers
from stayfast.policy.routing.replica_cost import ReplicaWork, costs_s, foreign_work, order_by_cost
from stayfast.upstreams.state.signal_board import SignalBoard
from stayfast.upstreams.state.upstream_state import UpstreamState
from stayfast.wire.prompt import RequestPrompt, read_prompt, read_session

MAX_RESPONSES = 20_000  # with a known upstream: a response can be continued only at the upstream that stores it
SESSION_HEADER = "x-session-id"
_NOTHING = RequestPrompt(b"", b"", "")
_RESPONSES_API = Api.RESPONSES


@dataclass(frozen=True, slots=True)
class PickConfig:
    """The settings of one route."""

    in_turn: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    affinity: AffinityConfig = field(default_factory=AffinityConfig)
    eject: EjectConfig = field(default_factory=EjectConfig)

    @property
    def is_plain(self) -> bool:
        """Whether only the listed order or the load decides."""
        return not self.weights and self.affinity.mode == "off" and not self.eject.enabled


class AttemptLearner(Protocol):
    """Learns from the attempts at some targets. service_tier: that they request; empty: standard, or none."""

    service_tier: str

    def learn(self, done: AttemptDone, n_bytes: int, *, is_incremental: bool) -> None:
        """An attempt has ended. n_bytes: of its request. is_incremental: its time to the first token is known."""


@dataclass(frozen=True, slots=True)
class Target:
    """One upstream of a route, and the model's name there (None: as the client names it)."""

    member: UpstreamState
    model: str | None = None
    prices: Prices = field(default_factory=dict)  # by the model's name there
    continues: bool = False  # it can continue an assistant message at the end of a request
    learner: AttemptLearner | None = None  # None: the route has no tiers

    def upstream_model(self, requested: str) -> tuple[str, str]:
        """The upstream's name, and the start of the model's name there. requested: as the client names it."""
        return self.member.upstream.name, (self.model or requested)[:MAX_NAME]


class _Peers(Struct, frozen=True):
    offers: Sequence[Target]
    members: list[UpstreamState]
    names: list[str]
    weights: list[float]  # relative to their mean; empty: the route has no weights


USUAL_LEARNS = 0.05
MAX_PEERS = 16  # sets of targets: by API, and by reload


class UpstreamSelector:
    """The selector of one route. Belongs to one loop; nothing here awaits. Survives a reload with unchanged settings."""

    __slots__ = ("_has_affinity", "_outliers", "_peers", "_responses", "_route", "_sees_prefix",
                 "_sees_sessions", "_sink", "_usual_tokens", "beliefs", "choices", "config", "exact", "signals")

    def __init__(self, config: PickConfig, route: str = "", sink: Sink | None = None, *, signals: SignalBoard | None = None,
                 exact: ExactPrefixes | None = None) -> None:
        """signals: of the engines; exact: their own index of their caches. None: they show none."""
        self.config = config
        self.signals = signals
        self.exact = exact
        self._has_affinity = config.affinity.mode != "off"
        self._sees_prefix, self._sees_sessions = config.affinity.sees_prefix, config.affinity.sees_sessions
        self._peers: dict[int, _Peers] = {}  # by the identity of their targets
        self._route = route
        self._sink = sink or Fanout()
        self.choices: dict[tuple[str, str], int] = {}  # by upstream and result: hit, moved, new
        self.beliefs = PrefixBeliefs(config.affinity)
        self._usual_tokens = 0.0  # of a prompt that is sent; running mean
        self._outliers = Outliers(config.eject) if config.eject.enabled else None
        self._responses: dict[int, str] = {}

    def rank(self, offers: Sequence[Target], request: Request, session: bytes, *, now: float, rng: Random
              ) -> tuple[list[int], "RoutingFeedback", list[str]]:
        """The indices of the targets, best first; the feedback for their attempts; notes for the log. session: from the
        request's headers; empty: read the body.
        """
        config, outliers, body, model = self.config, self._outliers, request.body, request.model
        n_body, blocks = len(body), list[int]()
        if self._sees_prefix and n_body >= BLOCK:
            request_prompt = read_prompt(body)
            blocks = hash_blocks(request_prompt.prompt, model)
        else:
            request_prompt = read_session(body) if self._sees_sessions else _NOTHING
        aim = RoutingFeedback(self, n_body, blocks, len(request_prompt.prompt), request.api is _RESPONSES_API,
                              model[:MAX_NAME])
        peers = self._peers.get(id(offers))
        if peers is None or peers.offers is not offers:
            peers = self._peers_of(offers)
        names, weights = peers.names, peers.weights
        loads = [offer.member.load_of(now, offer.model or model) for offer in offers]
        notes: list[str] = []
        if outliers is not None and (now >= outliers.recheck_at or not outliers.has_no_ejections):
            loads = self._reduce_ejected_loads(outliers, loads, names, now)
            notes = [f"ejected {name}: {why}" for name, why in outliers.ejected(now).items() if name in names]
        if config.in_turn:
            return order_as_listed(loads, rng), aim, notes
        previous_id = request_prompt.previous_response_id
        made_at = self._responses.get(hash(previous_id)) if previous_id else None
        if made_at is not None and made_at in names:
            first = names.index(made_at)
            return [first, *(index for index in range(len(names)) if index != first)], aim, notes
        owner = self._find_owner((session or request_prompt.session_id) if self._sees_sessions else b"", names, loads)
        if owner is None and not blocks:  # no prefix to find: the load decides, as without affinity
            if weights:
                _weigh(loads, peers)
            found = order_by_weight(loads, weights, rng)
        else:
            exact = self.exact.cached_tokens(request, names, now) if self.exact is not None and blocks else None
            works = self._collect_works(peers, aim, exact, now)
            found, note = self._order_by_cost(peers, works, aim, loads, owner=owner, rng=rng)
            notes += note
        return found, aim, notes

    def _order_by_cost(self, peers: _Peers, works: list[ReplicaWork], aim: "RoutingFeedback", loads: list[CandidateLoad], *,
                       owner: int | None, rng: Random) -> tuple[list[int], list[str]]:
        """The order, and a note on it if the upstreams differ in what they have of the prompt."""
        names, n_tokens = peers.names, aim.n_body / BYTES_A_TOKEN
        cached = [work.cached for work in works]
        differ = min(cached) < max(cached)
        if owner is not None and not differ:
            works[owner].cached = n_tokens  # another worker, or an earlier process, may have sent it there
        elif not differ and peers.weights:
            _weigh(loads, peers)
            return order_by_weight(loads, peers.weights, rng), []
        costs = costs_s(works, n_tokens)
        aim.works = dict(zip(names, works, strict=True))
        found = order_by_cost(loads, costs, owner, rng)
        first = found[0]
        result = "new" if not differ and owner is None else "hit" if works[first].cached >= max(
            work.cached for work in works) else "moved"
        self.choices[names[first], result] = self.choices.get((names[first], result), 0) + 1
        return found, [_explain_choice(names, found, works, costs)] if result != "new" else []

    def _collect_works(self, peers: _Peers, aim: "RoutingFeedback", exact: Sequence[float | None] | None,
                       now: float) -> list[ReplicaWork]:
        """What each upstream has to do for this prompt, and before it."""
        works = []
        for index, (offer, name) in enumerate(zip(peers.offers, peers.names, strict=True)):
            member = offer.member
            rate, ahead = None, 0.0
            if member.predictors is not None:
                ahead = member.predictors.ahead.n
                rate = member.predictors.tokens_per_s((offer.model or aim.model)[:MAX_NAME])
            n_running = float(member.n_in_flight)
            signals = self.signals.signals_of(name, now) if self.signals is not None else None
            if signals is not None:
                n_tokens, n_others = foreign_work(signals, len(member.pending), n_running, ahead, self._usual_tokens)
                ahead, n_running = ahead + n_tokens, n_running + n_others
            cached = exact[index] if exact is not None else None
            if cached is None:
                cached = self.beliefs.cached_tokens(name, aim.blocks, now)
            works.append(ReplicaWork(cached, ahead, n_running, rate, self.beliefs.failed_s(name, now),
                                     peers.weights[index] if peers.weights else 1.0))
        return works

    def _find_owner(self, session: bytes, names: Sequence[str], loads: Sequence[CandidateLoad]) -> int | None:
        """The index of the upstream that owns the session; None: there is no session."""
        if not session:
            return None
        there = [name for name, load in zip(names, loads, strict=True) if load.share > 0]
        return names.index(session_owner(session, there or names, self.config.weights))

    def _peers_of(self, offers: Sequence[Target]) -> _Peers:
        if len(self._peers) >= MAX_PEERS:
            self._peers.clear()
        members, weights = [offer.member for offer in offers], self.config.weights
        names = [member.upstream.name for member in members]
        shares = [weights.get(name, 1.0) for name in names] if weights else []
        peers = _Peers(offers, members, names, [weight * len(shares) / sum(shares) for weight in shares])
        self._peers[id(offers)] = peers
        return peers

    def list_ejected(self, now: float) -> Mapping[str, str]:
        """The ejected upstreams, with the reason."""
        return self._outliers.ejected(now) if self._outliers is not None else {}

    def _reduce_ejected_loads(self, outliers: Outliers, loads: list[CandidateLoad], names: Sequence[str],
                 now: float) -> list[CandidateLoad]:
        """The loads, with the shares of ejected upstreams reduced."""
        shares = outliers.traffic_shares(names, now)
        if outliers.changes:
            self._emit_changes(outliers.changes)
        if outliers.has_no_ejections:
            return loads
        if not any(share and load.share for share, load in zip(shares, loads, strict=True)):
            return loads  # no other upstream is left
        return [load if share >= 1 else CandidateLoad(load.seconds, min(share, load.share), load.needs_probe and share > 0)
                for load, share in zip(loads, shares, strict=True)]

    def _emit_changes(self, news: list[tuple[str, bool, str]]) -> None:
        for upstream, is_out, why in news:
            self._sink.emit(Ejected(self._route, upstream, is_out, why))
        news.clear()

    def note_sent(self, aim: "RoutingFeedback", member: UpstreamState, now: float) -> int:
        """An attempt begins; returns how many tokens of its prompt the upstream probably has."""
        name, work = member.upstream.name, aim.works.get(member.upstream.name)
        signals: EngineSignals | None = self.signals.signals_of(name, now) if self.signals is not None else None
        sent = self.beliefs.note_sent(name, aim.blocks, aim.n_prompt, signals, now)
        aim.sent[name] = sent
        n_tokens = aim.n_body / BYTES_A_TOKEN
        n_known = int(min(n_tokens, work.cached if work is not None else sent.share * aim.n_prompt / BYTES_A_TOKEN))
        self._usual_tokens += (max(0.0, n_tokens - n_known) - self._usual_tokens) * USUAL_LEARNS
        return n_known

    def note_first_token(self, aim: "RoutingFeedback", name: str, ttft_s: float, response_id: str | None, *,
                         is_whole: bool) -> None:
        """The first token arrived. response_id: of a response that can be continued."""
        if self._outliers is not None:
            self._outliers.record_first_token(name, ttft_s, aim.n_body, model=aim.model, is_whole=is_whole)
        if response_id is not None and self._sees_sessions:
            responses = self._responses
            responses[hash(response_id)] = name
            if len(responses) > MAX_RESPONSES:
                del responses[next(iter(responses))]

    def note_end(self, aim: "RoutingFeedback", name: str, seconds: float, now: float, *, is_lost: bool,
                 is_whole: bool) -> None:
        """A call failed by the endpoint's fault, or lost to a hedge."""
        if not is_lost and self._has_affinity:
            self.beliefs.note_failure(name, now)
        if self._outliers is None:
            return
        if is_lost:
            self._outliers.record_lower_bound(name, seconds, aim.n_body, model=aim.model, is_whole=is_whole)
        else:
            self._outliers.record_failure(name)

    @property
    def n_responses(self) -> int:
        """Responses whose upstream is known, for the requests that continue them."""
        return len(self._responses)

    def __repr__(self) -> str:
        return f"<UpstreamSelector {self.config.affinity.mode}: {self.beliefs!r} {self._outliers!r}>"


def _explain_choice(names: Sequence[str], found: Sequence[int], works: Sequence[ReplicaWork],
                    costs: Sequence[float]) -> str:
    """Why the first one was chosen, compared with the least cost of the others."""
    first = found[0]
    other = min(found[1:], key=costs.__getitem__)
    return (f"picked {names[first]}: about {works[first].cached:.0f} tokens of its prompt cached, "
            f"{works[first].ahead:.0f} ahead, cost {costs[first]:.2g} s; {names[other]}: {works[other].cached:.0f}, "
            f"{works[other].ahead:.0f}, {costs[other]:.2g} s")


def _weigh(loads: list[CandidateLoad], peers: _Peers) -> None:
    for index, member in enumerate(peers.members):
        n_before = member.n_in_flight + (member.backlog.work if member.backlog is not None else 0.0)
        if n_before:
            loads[index] = weigh_load(loads[index], n_before, peers.weights[index])


class RoutingFeedback(Struct):
    """What the selector knows of one request, to learn from its attempts."""

    selector: UpstreamSelector
    n_body: int  # bytes
    blocks: list[int]
    n_prompt: int  # bytes; 0: not read
    is_stored: bool  # the answer can be continued, at its upstream
    model: str  # as the client names it
    works: dict[str, ReplicaWork] = {}  # by upstream; empty: not chosen by cost
    sent: dict[str, SentPrompt] = {}  # by upstream: of the newest attempt there

    def note_sent(self, member: UpstreamState, now: float) -> int:
        return self.selector.note_sent(self, member, now)

    def note_usage(self, name: str, usage: Usage | None) -> None:
        """An attempt succeeded."""
        sent = self.sent.get(name)
        if sent is not None and usage is not None and usage.input_total:
            self.selector.beliefs.note_usage(name, sent, usage)

    def note_unanswered(self, name: str) -> None:
        """An attempt ended without a first token."""
        sent = self.sent.get(name)
        if sent is not None:
            self.selector.beliefs.note_unanswered(name, sent, self.blocks)

    def note_first_token(self, name: str, ttft_s: float, summary: AnswerSummary, *, is_whole: bool) -> None:
        self.selector.note_first_token(self, name, ttft_s, summary.response_id if self.is_stored else None,
                                       is_whole=is_whole)

    def note_end(self, name: str, seconds: float, now: float, *, is_lost: bool, is_whole: bool) -> None:
        self.selector.note_end(self, name, seconds, now, is_lost=is_lost, is_whole=is_whole)


def session_of(headers: Sequence[tuple[str, str]]) -> bytes:
    """The session that a request's headers name; empty: none."""
    return next((value.encode() for name, value in headers if name == SESSION_HEADER), b"")
