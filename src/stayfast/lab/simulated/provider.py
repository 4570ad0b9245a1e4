"""A simulated provider, as those that call it see it."""

from itertools import count

from stayfast.core.clock import Clock
from stayfast.lab.simulated.call import Answering
from stayfast.lab.simulated.config import ProviderConfig
from stayfast.lab.simulated.provider_state import ProviderState
from stayfast.lab.simulated.request import Ask


class Provider(ProviderState):
    """One simulated provider. One loop; its life begins when it is made."""

    def __init__(self, name: str, config: ProviderConfig, clock: Clock) -> None:
        super().__init__(name, config, clock)
        self._numbers = count()

    def ask(self, ask: Ask) -> Answering:
        """Take a request. Nothing happens before its `begin`."""
        now = self.clock.now()
        counts = self.counts
        counts.n_asked += 1
        counts.n_running += 1
        counts.n_running_peak = max(counts.n_running_peak, counts.n_running)
        if counts.first_at is None:
            counts.first_at = now
        counts.last_at = now
        return Answering(self, ask, next(self._numbers) if ask.number is None else ask.number, now)
