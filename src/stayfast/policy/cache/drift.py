"""Tests of a semantic cache's error that are valid at any time: of its audits, and of each scope.

Problem: a threshold is proven on past questions. If the traffic changes, the proof says nothing about it, and a test that is
repeated after every audit finds something by chance in the end. Rules:

    AuditTest    the hypothesis "at most max_error of the answers are wrong" is tested on audits alone, by e-values. For each
                 multiple m of RATIOS, with q = min(MAX_WRONG, m max_error):
                     e_m <- max(1, e_m) * (q / max_error if wrong, else (1 - q) / (1 - max_error))
                 The test rejects if the mean of the e_m reaches ALARM: under the hypothesis after no fewer than ALARM
                 audits, on average, however long the test runs
    ScopeTest    the calibration belongs to a tenant, the stored questions to a scope. A scope must show that the calibration
                 holds there. It compares the odds of a wrong answer that the calibration predicts, from the last labels
                 near or above the threshold, misses included, with ODDS times these odds:
                     llr <- max(-PASS, llr + ln(likelihood at ODDS times the odds / likelihood as predicted))
                 A scope starts at 0 without trust, gains it at -PASS, and loses it at ALARM_LLR, to start again at 0. From
                 -PASS on this is Page's CUSUM: new topics in a trusted scope are found by their misses, long before
                 the audits of hits could show them
    TestedHits   without results of audits nothing is tested: after MAX_UNTESTED / audit_share hits and MAX_UNTESTED_S
                 without a result, nothing is served until the next one

Source: Shin, Ramdas, Rinaldo, "E-detectors" (2022); Wald, "Sequential analysis" (1947); Page (1954). The odds ratio of
scopes is ours.
When wrong: answers that are wrong in a way that the judge of answers accepts pass all tests.
"""

from math import log

from msgspec import Struct

RATIOS = (3.0, 10.0, 30.0)
MAX_WRONG = 0.9
ALARM = 100.0
ODDS = 3.0
PASS = 3.0
ALARM_LLR = 3.9
LEAST_EXPECTED, MOST_EXPECTED = 0.002, 0.95  # of a prediction: a label that was thought certain proves only so much
MAX_UNTESTED = 10.0
MAX_UNTESTED_S = 30.0


class AuditTest:
    """The test of one tenant's audits."""

    __slots__ = ("_alarm", "_evidence", "_max_error", "_shares")

    def __init__(self, max_error: float, alarm: float = ALARM) -> None:
        self._alarm = alarm
        self._max_error = max_error
        self._shares = [min(MAX_WRONG, ratio * max_error) for ratio in RATIOS]
        self._evidence = [1.0] * len(RATIOS)

    def record_audit(self, *, is_wrong: bool) -> bool:
        """Record the result of one audit. Returns whether more than max_error is wrong; the test then starts again."""
        max_error = self._max_error
        self._evidence = [max(1.0, evidence) * (share / max_error if is_wrong else (1.0 - share) / (1.0 - max_error))
                          for evidence, share in zip(self._evidence, self._shares, strict=True)]
        is_rejected = sum(self._evidence) >= self._alarm * len(RATIOS)
        if is_rejected:
            self._evidence = [1.0] * len(RATIOS)
        return is_rejected


class ScopeTest(Struct, gc=False):
    """The test of one scope. n_labels: all of its labels, since the calibration was last restarted."""

    llr: float = 0.0
    is_trusted: bool = False
    n_labels: int = 0

    def record_label(self, expected: float, *, is_wrong: bool) -> bool:
        """Record a label near or above the threshold. expected: the predicted probability of a wrong answer. Returns whether
        the scope lost its trust, or would have.
        """
        p = min(MOST_EXPECTED, max(LEAST_EXPECTED, expected))
        self.llr = max(-PASS, self.llr + (log(ODDS) if is_wrong else 0.0) - log(1.0 + (ODDS - 1.0) * p))
        if self.llr <= -PASS:
            self.is_trusted = True
        if self.llr < ALARM_LLR:
            return False
        self.llr, self.is_trusted = 0.0, False
        return True


class TestedHits(Struct, gc=False):
    """Hits since the last comparison of a hit, or of an answer that would have been one."""

    n: int = 0
    last_at: float = float("-inf")

    def record_hit(self, now: float) -> None:
        """A hit was served at this instant."""
        if not self.n:
            self.last_at = now
        self.n += 1

    def record_result(self) -> None:
        self.n = 0

    def is_untested(self, audit_share: float, now: float) -> bool:
        """Whether too many hits have been served without a result."""
        return self.n * audit_share >= MAX_UNTESTED and now - self.last_at >= MAX_UNTESTED_S
