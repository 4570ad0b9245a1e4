"""What a fan-out brought: what is done, and what is missing and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stayfast.turns.errors import StepFailed
from stayfast.turns.running import Running


@dataclass(frozen=True, slots=True)
class Missing:
    """One that brought nothing. `why`: timeout, failed, skipped, cancelled or late; `detail` says more, in words of ours."""

    why: str
    detail: str
    elapsed_s: float
    error: BaseException | None = None  # its own


@dataclass(frozen=True, slots=True)
class Partial:
    """`done`: results by name, and fallbacks; `missing`: what brought no result of its own; `late`: what of that goes on.

    A late one's result is `await late["web"].wait()`.
    """

    done: Mapping[str, Any]
    missing: Mapping[str, Missing] = field(default_factory=dict)
    late: Mapping[str, Running] = field(default_factory=dict)

    @property
    def timed_out(self) -> tuple[str, ...]:
        """Those that were not done in time."""
        return tuple(name for name, missing in self.missing.items() if missing.why in ("timeout", "late"))

    def get(self, name: str, default: Any = None) -> Any:
        """One result, or `default` where it is missing."""
        return self.done.get(name, default)

    def require(self, *names: str) -> None:
        """Raise for the first of these that is missing: its own exception, or StepFailed, which says why."""
        for name in names:
            if name in self.missing:
                missing = self.missing[name]
                raise missing.error or StepFailed(name, missing.detail)
            if name not in self.done:
                raise KeyError(f"there was no {name!r} among {', '.join((*self.done, *self.missing))}")
