"""The labels of one route's semantic cache: one calibration for each tenant, and the labels in the log.

Problem: labels prove a threshold, and labels come from questions. If tenants shared them, the questions of one tenant, all
of one kind, would set the threshold for the questions of another. Rule: each tenant has its own labels and its own shadow
phase, so a tenant without labels gets no hits. At most MAX_LABELS are stored for all tenants; beyond it, the tenant that
learned least recently loses its labels. When wrong: tenants with little traffic may never have enough labels, and get no
hits.
"""

from collections import deque
from collections.abc import Mapping
from operator import itemgetter

from msgspec import Struct, msgpack

from stayfast.pipeline.cache.semantic_index import LabelLog
from stayfast.policy.cache.calibration import CalibrateConfig, CalibrationEstimate, Calibrator
from stayfast.policy.cache.similarity import N_FEATURES

MAX_LABELS = 65_536  # 25 MB


class LabelRecord(Struct, array_like=True, gc=False):
    """The result of one comparison, as in the log. tenant: of the question. scope, answer: of the neighbour's answer.
    n_audits: how many started audits the label represents, because some audits end without a result.
    """

    features: tuple[float, ...]
    is_right: bool
    was_given: bool
    tenant: str | None = None
    scope: bytes = b""
    answer: int = 0
    n_audits: float = 1.0


class _TenantLabels(Struct, gc=False):
    rule: Calibrator
    keys: deque[int]  # of the tenant's labels in the log, oldest first
    n_started: int = 0  # audits, by this process
    n_judged: int = 0  # of those, with a result


_encode, decode_label = msgpack.Encoder().encode, msgpack.Decoder(LabelRecord).decode


class Learning:
    """The calibrations of one route. One task at a time; nothing here awaits."""

    __slots__ = ("_config", "_most", "_n_keys", "_n_stored", "_own", "_untrained")

    def __init__(self, config: CalibrateConfig, most: int = MAX_LABELS) -> None:
        self._config = config
        self._most = most
        self._own: dict[str | None, _TenantLabels] = {}  # most recently learned last
        self._untrained = Calibrator(config, N_FEATURES)  # of tenants without labels; it never learns
        self._n_keys = 0
        self._n_stored = 0

    def rule_of(self, tenant: str | None) -> Calibrator:
        """The rule for a tenant's questions. Do not let it learn: use `learn`."""
        own = self._own.get(tenant)
        return own.rule if own is not None else self._untrained

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
        """Learn a label, and log it. Takes 0.2 ms: never while a client waits."""
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
        own = self._own.pop(label.tenant, None) or _TenantLabels(Calibrator(self._config, N_FEATURES), deque())
        self._own[label.tenant] = own
        self._n_keys = -key
        n_drifted = own.rule.n_drifted
        own.rule.learn(label.features, is_right=label.is_right, was_given=label.was_given, n_audits=label.n_audits)
        if own.rule.n_drifted > n_drifted:
            self._forget(own, len(own.keys), log)
            return
        own.keys.append(key)
        self._n_stored += 1
        self._forget(own, len(own.keys) - self._config.max_labels, log)
        while self._n_stored > self._most and len(self._own) > 1:
            evicted = self._own.pop(next(iter(self._own)))
            self._forget(evicted, len(evicted.keys), log)

    def _forget(self, own: _TenantLabels, n: int, log: LabelLog | None) -> None:
        """Delete the `n` oldest labels from the log."""
        for _ in range(n):
            key = own.keys.popleft()
            self._n_stored -= 1
            if log is not None:
                log.delete(key)

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
