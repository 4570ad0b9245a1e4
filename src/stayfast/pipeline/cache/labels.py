"""What the tenants of one route have taught its semantic cache: a calibration for each, and the labels in the log.

Problem: a threshold is proven by labels, and labels are of somebody's questions. One tenant's that are all of one kind would
set the threshold by which another one's are answered. Rule: each tenant's labels are its own, and so is its shadow: who has
taught nothing is given nothing. MOST_LABELS are kept of all; beyond it, who learned longest ago begins again.
When wrong: many tenants of little traffic never have labels enough, and get no hits.
"""

from collections import deque
from collections.abc import Mapping
from operator import itemgetter

from msgspec import Struct, msgpack

from stayfast.pipeline.cache.semantic_index import LabelLog
from stayfast.policy.cache.calibration import CalibrateConfig, CalibrationEstimate, Calibrator
from stayfast.policy.cache.similarity import N_FEATURES

MOST_LABELS = 65_536  # 25 MB


class LabelRecord(Struct, array_like=True, gc=False):
    """What came of a comparison, as it is in the log. tenant: whose question it was. scope, answer: what it was about.
    n_audits: of those that were begun, for how many it stands; others came to nothing.
    """

    features: tuple[float, ...]
    is_right: bool
    was_given: bool
    tenant: str | None = None
    scope: bytes = b""
    answer: int = 0
    n_audits: float = 1.0


class _Own(Struct, gc=False):
    rule: Calibrator
    keys: deque[int]  # of its labels in the log, oldest first
    n_started: int = 0  # audits, by this process
    n_judged: int = 0  # of those


_encode, decode_label = msgpack.Encoder().encode, msgpack.Decoder(LabelRecord).decode


class Learning:
    """One route's. One task at a time; nothing here waits."""

    __slots__ = ("_config", "_most", "_n_keys", "_n_stored", "_own", "_untrained")

    def __init__(self, config: CalibrateConfig, most: int = MOST_LABELS) -> None:
        self._config = config
        self._most = most
        self._own: dict[str | None, _Own] = {}  # who learned last comes last
        self._untrained = Calibrator(config, N_FEATURES)  # has learned nothing, and never will
        self._n_keys = 0
        self._n_stored = 0

    def rule_of(self, tenant: str | None) -> Calibrator:
        """By which its questions are judged; not to be taught."""
        own = self._own.get(tenant)
        return own.rule if own is not None else self._untrained

    def note_audit_started(self, tenant: str | None) -> None:
        """One of a tenant's hits is to be audited, whatever comes of it."""
        own = self._own.get(tenant)
        if own is not None:
            own.n_started += 1

    def audit_judged(self, tenant: str | None) -> float:
        """One was; returns how many it stands for: those that came to nothing are as wrong as those that did not."""
        own = self._own.get(tenant)
        if own is None:
            return 1.0
        own.n_judged += 1
        return max(1.0, own.n_started / own.n_judged)

    def learn(self, label: LabelRecord, log: LabelLog | None) -> None:
        """One label more, also in the log. 0.2 ms: not while a client waits."""
        self._learn(label, -1 - self._n_keys, log)
        if log is not None and (own := self._own[label.tenant]).keys and own.keys[-1] == -self._n_keys:
            log.put(-self._n_keys, _encode(label))

    def add_own(self, label: LabelRecord, log: LabelLog | None) -> None:
        """One that others are to know, where nothing is learned of it here: the last one stands in the log."""
        if log is not None:
            log.put(-1, _encode(label))

    def add_remote(self, label: LabelRecord, log: LabelLog | None) -> None:
        self._learn(label, -1 - self._n_keys, log)

    def restore(self, logged: Mapping[int, bytes]) -> None:
        """Learn again what was logged: its keys are below 0, the oldest the highest."""
        for key in sorted([key for key in logged if key < 0], reverse=True):
            self._learn(decode_label(logged[key]), key, None)

    def _learn(self, label: LabelRecord, key: int, log: LabelLog | None) -> None:
        own = self._own.pop(label.tenant, None) or _Own(Calibrator(self._config, N_FEATURES), deque())
        self._own[label.tenant] = own
        self._n_keys = -key
        n_drifted = own.rule.n_drifted
        own.rule.learn(label.features, is_right=label.is_right, was_given=label.was_given, n_audits=label.n_audits)
        if own.rule.n_drifted > n_drifted:
            self._forget(own, len(own.keys), log)
            return
        own.keys.append(key)
        self._n_stored += 1
        self._forget(own, len(own.keys) - self._config.n_kept, log)
        while self._n_stored > self._most and len(self._own) > 1:
            gone = self._own.pop(next(iter(self._own)))
            self._forget(gone, len(gone.keys), log)

    def _forget(self, own: _Own, n: int, log: LabelLog | None) -> None:
        """The oldest labels are in the log no more."""
        for _ in range(n):
            key = own.keys.popleft()
            self._n_stored -= 1
            if log is not None:
                log.delete(key)

    @property
    def n_labels(self) -> int:
        """Of all tenants, each since its beginning or last drift."""
        return sum(own.rule.n_labels for own in self._own.values())

    @property
    def is_shadow(self) -> bool:
        """Whether nobody is given anything yet."""
        return all(own.rule.is_shadow for own in self._own.values())

    @property
    def n_drifted(self) -> int:
        """How often it began again."""
        return sum(own.rule.n_drifted for own in self._own.values())

    def audited(self) -> tuple[int, int]:
        """How many of the last audits found a wrong answer, and of how many."""
        counted = [own.rule.audit_counts() for own in self._own.values()]
        return sum(n_wrong for n_wrong, _ in counted), sum(n for _, n in counted)

    def worst(self) -> tuple[float | None, CalibrationEstimate | None]:
        """Threshold and estimate of the tenant whose error may be the largest: nobody else's is above its bound."""
        found = [(one.high, own.rule.threshold, one) for own in self._own.values()
                 if (one := own.rule.estimate_hits()) is not None]
        _, threshold, estimate = max(found, key=itemgetter(0), default=(0.0, None, None))
        return threshold, estimate

    def __repr__(self) -> str:
        return f"<Learning of {len(self._own)} tenants, {self._n_stored} labels>"
