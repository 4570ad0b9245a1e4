"""Whether a call was slow only because it queued behind our own calls: load, which lowers a limit but opens no breaker.

Problem: an idle engine that gets forty prompts at once reads them one after another. Most of them are slow although nothing
is wrong. Rule: a slow call is explained by our own load if both hold:

    n_running  >  n_good                       more calls ran at its start (itself included) than lately ran well
    n_answered >= n_good / held_s * waited_s / slow_factor

n_good is the highest concurrency of a call with its first token within 1.5 times its baseline; each later one moves it by
1/300 of the difference. held_s is the usual duration of a call, so n_good / held_s is the throughput with n_good calls
(Little's law). n_answered counts the first tokens while the call waited.
Source: Little, "A Proof for the Queuing Formula L = lambda W" (1961); the rule is ours.
When wrong: an upstream that slows down gradually under a steady load answers as many as arrive, like a queue. There the
limit is cut until concurrency is ordinary, and then slow calls count.
"""

from stayfast.policy.resilience.baselines import Baseline, log_of

GOOD_RATIO = 1.5
N_GOOD = 300  # quick calls over which n_good falls to the usual concurrency
MAX_UNREAD = 64  # durations that are learned at once; few calls are slow, and only those need the usual duration


class Concurrency:
    """The concurrency of one upstream that causes no slowness, and its throughput. Pure state; changed only by its owner."""

    __slots__ = ("_durations_s", "_held", "_n_good", "n_answered")

    def __init__(self) -> None:
        self.n_answered = 0  # first tokens since the start
        self._n_good = 1.0
        self._held = Baseline()
        self._durations_s: list[float] = []  # not learned yet

    def record_first_token(self, n_running: int, ttft_s: float, usual_s: float) -> None:
        """Record a first token. `n_running`: concurrency, the call included. `usual_s`: baseline of its class; 0: none."""
        self.n_answered += 1
        if ttft_s <= GOOD_RATIO * usual_s:
            if n_running < self._n_good:
                self._n_good += (n_running - self._n_good) / N_GOOD
            else:
                self._n_good = float(n_running)

    def record_duration(self, held_s: float) -> None:
        """Record the duration of a call with a complete answer."""
        self._durations_s.append(held_s)
        if len(self._durations_s) >= MAX_UNREAD:
            self._learn_durations()

    def _learn_durations(self) -> None:
        durations_s, self._durations_s = self._durations_s, []
        if durations_s:
            self._held.learn(sum(map(log_of, durations_s)), len(durations_s))

    def is_ordinary(self, n_running: int) -> bool:
        return n_running <= self._n_good

    def explains_slowness(self, n_running: int, n_answered: float, waited_s: float, slow_factor: float) -> bool:
        """Whether a slow call only queued. `n_answered`: first tokens of other calls while it waited for `waited_s`."""
        self._learn_durations()
        held_s = self._held.baseline_s
        is_moving = held_s > 0 and n_answered * slow_factor >= self._n_good / held_s * waited_s
        return is_moving and not self.is_ordinary(n_running)
