"""Settings of the hooks of a route."""

from dataclasses import dataclass
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds


@dataclass(frozen=True, slots=True)
class HooksConfig:
    """Your functions before and after each call. One name, or a list of names, means `use`."""

    SHORTHAND = "use"
    TAKES_ONE = True  # one name alone stands for a list of it

    use: Annotated[tuple[str, ...], SettingDoc(
        "Functions or objects, as package.module:name, also from the current folder. Before a call in this order, after it "
        "in reverse (docs/extensions.md).",
        pattern=r"[^\W\d][\w.]*:[^\W\d][\w.]*", form="like package.module:name")] = ()
    timeout_s: Annotated[float, SettingDoc(
        "Time limit of each hook, within the request's deadline. A plain function is not ended by it, unless `thread`.",
        minimum=0.001, maximum=60)] = 0.5
    on_error: Annotated[Literal["fail", "skip"], SettingDoc(
        "If a hook raises, takes too long or returns nonsense. fail: the request fails (500). skip: continue without it."
    )] = "fail"
    thread: Annotated[bool, SettingDoc("Run plain functions in threads, as they block. async ones never.")] = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if len(set(self.use)) < len(self.use):
            raise ValueError("use must name each hook once")
