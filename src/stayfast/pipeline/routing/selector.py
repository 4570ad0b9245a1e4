"""How one route chooses among its upstreams by affinity, weights and ejection. A route with none of them has no selector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from msgspec import Struct

from stayfast.core.constants import BYTES_A_TOKEN, MAX_NAME
from stayfast.core.events import AttemptDone, Ejected, Fanout, Sink
from stayfast.core.types import AnswerSummary, Api, Request
from stayfast.policy.admission.price import Prices
from stayfast.policy.routing.affinity import BLOCK_BYTES as BLOCK
from stayfast.policy.routing.affinity import MAX_BLOCKS, AffinityConfig, SentPrefixes, hash_blocks, session_owner
from stayfast.policy.routing.load_balancing import CandidateLoad, order_as_listed, order_by_score, weigh_load
from stayfast.policy.routing.outlier_ejection import EjectConfig, Outliers
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


MAX_PEERS = 16  # sets of targets: by API, and by reload


class UpstreamSelector:
    """The selector of one route. Belongs to one loop; nothing here awaits. Survives a reload with unchanged settings."""

    __slots__ = ("_has_affinity", "_outliers", "_peers", "_prefixes", "_responses", "_route", "_sees_prefix",
                 "_sees_sessions", "_sink", "choices", "config", "tokens")

    def __init__(self, config: PickConfig, route: str = "", sink: Sink | None = None) -> None:
        self.config = config
        self._has_affinity = config.affinity.mode != "off"
        self._sees_prefix, self._sees_sessions = config.affinity.sees_prefix, config.affinity.sees_sessions
        self._peers: dict[int, _Peers] = {}  # by the identity of their targets
        self._route = route
        self._sink = sink or Fanout()
        self.choices: dict[tuple[str, str], int] = {}  # by upstream and result: hit, moved, new
        self.tokens: dict[tuple[str, str], int] = {}  # of prompts sent, by upstream and kind: known, new
        self._prefixes: dict[str, SentPrefixes] = {}
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
        session = (session or request_prompt.session_id) if self._sees_sessions else b""
        new_shares = self._compute_new_shares(aim, session, names, loads, now) if blocks or session else []
        if weights:
            _weigh(loads, peers)
        waits_s = _predict_waits_s(peers.offers, new_shares, aim) if new_shares else []
        found = order_by_score(loads, weights, new_shares, waits_s, max_load=config.affinity.max_load, rng=rng)
        if self._has_affinity:
            self._count(names[found[0]], found[0], new_shares)
            if new_shares:
                notes.append(_explain_choice(names, found[0], loads, new_shares, aim.n_prompt))
        return found, aim, notes

    def _peers_of(self, offers: Sequence[Target]) -> _Peers:
        if len(self._peers) >= MAX_PEERS:
            self._peers.clear()
        members, weights = [offer.member for offer in offers], self.config.weights
        names = [member.upstream.name for member in members]
        shares = [weights.get(name, 1.0) for name in names] if weights else []
        peers = _Peers(offers, members, names, [weight * len(shares) / sum(shares) for weight in shares])
        self._peers[id(offers)] = peers
        return peers

    @property
    def n_blocks(self) -> int:
        """Prompt blocks with a known upstream."""
        return sum(map(len, self._prefixes.values()))

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

    def _compute_new_shares(self, aim: "RoutingFeedback", session: bytes, names: Sequence[str],
                            loads: Sequence[CandidateLoad],
                    now: float) -> list[float]:
        """The share of the prompt that is new to each upstream; empty: it is the same for all."""
        shares = [1.0] * len(names)
        if aim.blocks:
            n_bytes = min(aim.n_prompt, MAX_BLOCKS * BLOCK)
            shares = [1 - self._sent_prefixes(name).n_known(aim.blocks, now) * BLOCK / n_bytes for name in names]
        if session:
            there = [name for name, load in zip(names, loads, strict=True) if load.share > 0]
            shares[names.index(session_owner(session, there or names, self.config.weights))] = 0.0
        return shares if min(shares) < max(shares) else []

    def _count(self, name: str, first: int, new_shares: Sequence[float]) -> None:
        result = "new" if not new_shares else "hit" if new_shares[first] <= min(new_shares) else "moved"
        self.choices[name, result] = self.choices.get((name, result), 0) + 1

    def _sent_prefixes(self, name: str) -> SentPrefixes:
        found = self._prefixes.get(name)
        if found is None:
            self._prefixes[name] = found = SentPrefixes(self.config.affinity.most_blocks, self.config.affinity.ttl_s)
        return found

    def note_sent(self, aim: "RoutingFeedback", name: str, now: float) -> int:
        """An attempt begins; returns how many bytes of its prompt the upstream knew."""
        if not aim.blocks:
            return 0
        prefixes = self._sent_prefixes(name)
        n_known = prefixes.n_known(aim.blocks, now) * BLOCK
        prefixes.record_sent(aim.blocks, now)
        tokens = self.tokens
        for kind, n_bytes in (("known", n_known), ("new", aim.n_prompt - n_known)):
            tokens[name, kind] = tokens.get((name, kind), 0) + n_bytes // BYTES_A_TOKEN
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

    def note_end(self, aim: "RoutingFeedback", name: str, seconds: float, *, is_lost: bool, is_whole: bool) -> None:
        """A call failed by the endpoint's fault, or lost to a hedge."""
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
        return f"<UpstreamSelector {self.config.affinity.mode}: {self._prefixes!r} {self._outliers!r}>"


def _explain_choice(names: Sequence[str], first: int, loads: Sequence[CandidateLoad], new_shares: Sequence[float],
            n_prompt: int) -> str:
    """Why the first one was chosen, compared with the least loaded of the others."""
    other = min((index for index in range(len(names)) if index != first), key=lambda index: loads[index].seconds)
    n_known, n_known_there = (int((1 - new_shares[index]) * n_prompt / BYTES_A_TOKEN) for index in (first, other))
    return (f"picked {names[first]}: about {n_known} tokens of its prompt known, load {loads[first].seconds:.2g} s; "
            f"{names[other]}: {n_known_there}, {loads[other].seconds:.2g} s")


def _weigh(loads: list[CandidateLoad], peers: _Peers) -> None:
    for index, member in enumerate(peers.members):
        n_before = member.n_in_flight + (member.backlog.work if member.backlog is not None else 0.0)
        if n_before:
            loads[index] = weigh_load(loads[index], n_before, peers.weights[index])


def _predict_waits_s(offers: Sequence[Target], new_shares: Sequence[float], aim: "RoutingFeedback") -> list[float]:
    """The predicted time to the first token at each upstream; empty unless it is known for all."""
    waits_s = []
    for offer, new_share in zip(offers, new_shares, strict=False):
        predictors, (_, model) = offer.member.predictors, offer.upstream_model(aim.model)
        wait_s = predictors.predict_s(model, aim.n_body * new_share / BYTES_A_TOKEN) if predictors is not None else None
        if wait_s is None:
            return []
        waits_s.append(wait_s)
    return waits_s


class RoutingFeedback(Struct):
    """What the selector knows of one request, to learn from its attempts."""

    selector: UpstreamSelector
    n_body: int  # bytes
    blocks: list[int]
    n_prompt: int  # bytes; 0: not read
    is_stored: bool  # the answer can be continued, at its upstream
    model: str  # as the client names it

    def note_sent(self, name: str, now: float) -> int:
        return self.selector.note_sent(self, name, now)

    def note_first_token(self, name: str, ttft_s: float, summary: AnswerSummary, *, is_whole: bool) -> None:
        self.selector.note_first_token(self, name, ttft_s, summary.response_id if self.is_stored else None,
                                       is_whole=is_whole)

    def note_end(self, name: str, seconds: float, *, is_lost: bool, is_whole: bool) -> None:
        self.selector.note_end(self, name, seconds, is_lost=is_lost, is_whole=is_whole)


def session_of(headers: Sequence[tuple[str, str]]) -> bytes:
    """The session that a request's headers name; empty: none."""
    return next((value.encode() for name, value in headers if name == SESSION_HEADER), b"")
