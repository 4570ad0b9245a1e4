"""Whether a call was slow because it queued behind our own calls: load, which lowers a limit and opens no breaker.

Problem: an idle engine that gets forty prompts at once reads them one after another. Most of the forty wait many times the
usual, and nothing is wrong with it; a breaker that opens for that takes a healthy engine away from the requests after them.
Rule: a slow call is explained by our own load where both are true:

    n_running  >  n_good                       more ran when it began (itself included) than lately went well
    n_answered >= n_good / held_s * waited_s / slow_factor

n_good is the most that ran when a call began that had its first token within 1.5 times its usual time; each later one moves
it by 1/300 of the difference. held_s is how long a call usually runs there, so that n_good / held_s is the pace of an
upstream that has n_good calls (Little's law), and n_answered counts the first tokens that came while the call waited.
What queues goes on at about that pace; what is stuck, or has become slow, does not. What is slow at ordinary concurrency is
never explained.

Source: Little, "A Proof for the Queuing Formula L = lambda W" (1961); the rule is ours.
When wrong: an upstream that becomes slower little by little under a steady load answers as many as arrive, as a queue does:
there the limit finds out, which cuts until no more run than went well, and then the slow calls count. One prompt that is far
longer than the others stops the answers behind it: those count as slow.
"""

from stayfast.policy.resilience.baselines import Baseline, log_of

GOOD_RATIO = 1.5
N_GOOD = 300  # quick calls in which n_good falls to what is usual


class Concurrency:
    """How many calls run at one upstream without becoming slow, and its pace. Pure state; changed only by its owner."""

    __slots__ = ("_held", "_n_good", "n_answered")

    def __init__(self) -> None:
        self.n_answered = 0  # first tokens, ever
        self._n_good = 1.0
        self._held = Baseline()

    def answered(self, n_running: int, ttft_s: float, usual_s: float) -> None:
        """A first token came for a call beside which so many ran, itself included. `usual_s`: of its class; 0: not known."""
        self.n_answered += 1
        if ttft_s <= GOOD_RATIO * usual_s:
            self._n_good = max(float(n_running), self._n_good + (n_running - self._n_good) / N_GOOD)

    def ended(self, held_s: float) -> None:
        """A call ended with its whole answer."""
        self._held.learn(log_of(held_s))

    def is_ordinary(self, n_running: int) -> bool:
        """Whether calls beside which so many ran, themselves included, lately went well."""
        return n_running <= self._n_good

    def explains(self, n_running: int, n_answered: float, waited_s: float, slow_factor: float) -> bool:
        """Whether a slow call only queued. `n_answered`: first tokens that came while it waited for `waited_s`."""
        held_s = self._held.baseline_s
        is_moving = held_s > 0 and n_answered * slow_factor >= self._n_good / held_s * waited_s
        return is_moving and not self.is_ordinary(n_running)

    def __repr__(self) -> str:
        return f"<Concurrency: up to {self._n_good:.3g} went well>"
