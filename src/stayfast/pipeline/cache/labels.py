"""The labels of one route's semantic cache: one calibration for each tenant, and the labels in the log.

Problem: labels prove a threshold, and labels come from questions. If tenants shared them, the questions of one tenant, all
of one kind, would set the threshold for the questions of another. Rule: each tenant has its own labels and its own shadow
phase, so a tenant without labels gets no hits. At most MAX_LABELS are stored for all tenants; beyond it, the tenant that
learned least recently loses its labels.

The stored questions belong to a scope, and a threshold that holds in one scope may not hold in another. So each scope is
tested by its own labels (policy/cache/drift.py), and serves nothing before it has passed. If a scope that made at least
SHARE_OF_LABELS of a tenant's labels fails its test, the traffic has changed: the tenant's calibration is restarted.
When wrong: tenants and scopes with little traffic may never have enough labels, and get no hits.
"""

from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter

from msgspec import Struct, msgpack

from stayfast.pipeline.cache.semantic_index import LabelLog
from stayfast.policy.cache.calibration import N_RETAINED, CalibrateConfig, CalibrationEstimate, Calibrator
from stayfast.policy.cache.drift import ScopeTest, TestedHits
from stayfast.policy.cache.similarity import N_FEATURES

MAX_LABELS = 65_536  # 32 MB
MAX_TENANTS = 1024  # the one that learned least recently is forgotten
MAX_SCOPES = 4096  # of a tenant; a scope that is forgotten must pass its test again
SHARE_OF_LABELS = 0.25


class LabelRecord(Struct, array_like=True, gc=False):
    """The result of one comparison, as in the log. tenant: of the question. scope, answer: of the neighbour's answer.
    n_audits: how many started audits the label represents, because some audits end without a result. is_servable: as in
    `similarity.Judgement`.
    """

    features: tuple[float, ...]
    is_right: bool
    was_given: bool
    tenant: str | None = None
    scope: bytes = b""
    answer: int = 0
    n_audits: float = 1.0
    is_servable: bool = True
    audit_share: float = 0.0  # when the label was made; 0: that of today


class _TenantLabels(Struct, gc=False):
    rule: Calibrator
    keys: deque[int]  # of the tenant's labels in the log, oldest first
    scopes: dict[bytes, ScopeTest]
    tested: TestedHits
    n_started: int = 0  # audits, by this process
    n_judged: int = 0  # of those, with a result


_encode, decode_label = msgpack.Encoder().encode, msgpack.Decoder(LabelRecord).decode


class Learning:
    """The calibrations of one route. One task at a time; nothing here awaits."""

    __slots__ = ("_config", "_most", "_n_keys", "_n_stored", "_own", "_untrained", "miss_share")

    def __init__(self, config: CalibrateConfig, most: int = MAX_LABELS, *,
                 miss_share: Callable[[], float] = lambda: 0.0) -> None:
        """miss_share: of different answers, those that the judge of answers calls the same."""
        self._config = config
        self._most = most
        self.miss_share = miss_share
        self._own: dict[str | None, _TenantLabels] = {}  # most recently learned last
        self._untrained = Calibrator(config, N_FEATURES)  # of tenants without labels; it never learns
        self._n_keys = 0
        self._n_stored = 0

    def rule_of(self, tenant: str | None) -> Calibrator:
        """The rule for a tenant's questions. Do not let it learn: use `learn`."""
        own = self._own.get(tenant)
        return own.rule if own is not None else self._untrained

    def reject_reason(self, tenant: str | None, scope: bytes, now: float) -> str:
        """The reason not to serve an answer in this scope, although the tenant's rule allows it; empty: serve it."""
        own = self._own.get(tenant)
        if own is None:
            return "shadow"
        test = own.scopes.get(scope)
        if test is None or not test.is_trusted:
            return "new_scope"
        return "untested" if own.tested.is_untested(self._config.audit, now) else ""

    def record_hit(self, tenant: str | None, now: float) -> None:
        """One of the tenant's questions is answered from the cache."""
        own = self._own.get(tenant)
        if own is not None:
            own.tested.record_hit(now)

    def note_audit_started(self, tenant: str | None) -> None:
        """An audit of one of the tenant's hits starts; it may end without a result."""
        own = self._own.get(tenant)
        if own is not None:
            own.n_started += 1

    def note_audit_judged(self, tenant: str | None) -> float:
        """An audit has a result. Returns how many started audits it represents: those without a result are assumed to be
        wrong as often as the others.
        """
        own = self._own.get(tenant)
        if own is None:
            return 1.0
        own.n_judged += 1
        return max(1.0, own.n_started / own.n_judged)

    def learn(self, label: LabelRecord, log: LabelLog | None) -> None:
        """Learn a label, and log it. Takes 0.3 ms: never while a client waits."""
        self._learn(label, -1 - self._n_keys, log)
        if log is not None and (own := self._own[label.tenant]).keys and own.keys[-1] == -self._n_keys:
            log.put(-self._n_keys, _encode(label))

    def add_own(self, label: LabelRecord, log: LabelLog | None) -> None:
        """Log a label for other processes without learning it. The log has only the last one."""
        if log is not None:
            log.put(-1, _encode(label))

    def add_remote(self, label: LabelRecord, log: LabelLog | None) -> None:
        self._learn(label, -1 - self._n_keys, log)

    def restore(self, logged: Mapping[int, bytes]) -> None:
        """Learn the labels of a log: their keys are negative, the oldest has the highest."""
        for key in sorted([key for key in logged if key < 0], reverse=True):
            self._learn(decode_label(logged[key]), key, None)

    def _learn(self, label: LabelRecord, key: int, log: LabelLog | None) -> None:
        own = self._own.pop(label.tenant, None) or _TenantLabels(Calibrator(self._config, N_FEATURES), deque(), {},
                                                                 TestedHits())
        self._own[label.tenant] = own
        self._n_keys = -key
        rule, n_drifted = own.rule, own.rule.n_drifted
        has_scope_failed = self._test_scope(own, label)
        rule.miss_share = self.miss_share()
        rule.learn(label.features, is_right=label.is_right, was_given=label.was_given, n_audits=label.n_audits,
                   is_servable=label.is_servable, audit_share=label.audit_share)
        if has_scope_failed and rule.n_drifted == n_drifted:
            rule.restart()
        own.keys.append(key)
        self._n_stored += 1
        if rule.n_drifted > n_drifted:
            own.scopes.clear()
            self._forget(own, len(own.keys) - N_RETAINED, log)
            return
        self._forget(own, len(own.keys) - self._config.max_labels, log)
        while (self._n_stored > self._most or len(self._own) > MAX_TENANTS) and len(self._own) > 1:
            evicted = self._own.pop(next(iter(self._own)))
            self._forget(evicted, len(evicted.keys), log)

    def _test_scope(self, own: _TenantLabels, label: LabelRecord) -> bool:
        """Test the label's scope. Returns whether it failed, and the tenant's calibration was mostly made there."""
        test = own.scopes.pop(label.scope, None) or ScopeTest()
        if len(own.scopes) >= MAX_SCOPES:
            del own.scopes[next(iter(own.scopes))]
        own.scopes[label.scope] = test  # the last one
        test.n_labels += 1
        rule = own.rule
        if label.was_given or (label.is_servable and not rule.reject_reason(rule.probability(label.features))):
            own.tested.record_result()
        expected = rule.expected_error(label.features) if label.is_servable else None
        if expected is None:
            return False
        has_failed = test.record_label(expected, is_wrong=not label.is_right)
        return has_failed and test.n_labels >= SHARE_OF_LABELS * own.rule.n_labels

    def _forget(self, own: _TenantLabels, n: int, log: LabelLog | None) -> None:
        """Delete the `n` oldest labels from the log."""
        for _ in range(n):
            key = own.keys.popleft()
            self._n_stored -= 1
            if log is not None:
                log.delete(key)

    def restarted(self, config: CalibrateConfig, log: LabelLog | None) -> "Learning":
        """Without labels, which are deleted from the log, and with other settings."""
        for own in self._own.values():
            self._forget(own, len(own.keys), log)
        fresh = Learning(config, self._most, miss_share=self.miss_share)
        fresh._n_keys = self._n_keys
        return fresh

    @property
    def n_labels(self) -> int:
        """The labels of all tenants, each since its start or last drift."""
        return sum(own.rule.n_labels for own in self._own.values())

    @property
    def is_shadow(self) -> bool:
        """Whether no tenant gets hits yet."""
        return all(own.rule.is_shadow for own in self._own.values())

    @property
    def n_drifted(self) -> int:
        """How often a calibration was restarted after drift."""
        return sum(own.rule.n_drifted for own in self._own.values())

    def audit_counts(self) -> tuple[int, int]:
        """The number of recent audits that found a wrong answer, and of all recent audits."""
        counted = [own.rule.audit_counts() for own in self._own.values()]
        return sum(n_wrong for n_wrong, _ in counted), sum(n for _, n in counted)

    def worst_estimate(self) -> tuple[float | None, CalibrationEstimate | None]:
        """Threshold and estimate of the tenant with the highest upper bound of the error."""
        found = [(one.high, own.rule.threshold, one) for own in self._own.values()
                 if (one := own.rule.estimate_hits()) is not None]
        _, threshold, estimate = max(found, key=itemgetter(0), default=(0.0, None, None))
        return threshold, estimate

    def __repr__(self) -> str:
        return f"<Learning of {len(self._own)} tenants, {self._n_stored} labels>"
