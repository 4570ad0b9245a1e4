"""What a step of a turn can end in, beside its own exceptions."""


class StepFailed(Exception):
    """A step brought no result, and not by an exception of its own. `name`: of the step."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"step {name!r}: {why}")
        self.name = name
        self.why = why


class StepTimeout(StepFailed, TimeoutError):
    """A step used all the time that it might take, or there was none left for it to begin."""


class StepSkipped(StepFailed):
    """A step was not begun: its breaker is open, or too many threads are busy."""


class StepCancelled(StepFailed):
    """A step was cancelled by itself or by somebody else, while whoever waited for it was not."""


class Refused(Exception):
    """For turns that are served to raise: what the client asks for cannot be answered. It is told so, in these words."""


class OutOfTime(TimeoutError):
    """The body of an `async with budget(...)` was still waiting for something when its time was over."""
