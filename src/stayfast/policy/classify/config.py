"""Settings of classifiers, of the guard of a route, and of routes by class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds

OnMatch = Literal["ignore", "flag", "block"]


@dataclass(frozen=True, slots=True)
class ClassifierConfig:
    """One trained classifier."""

    file: Annotated[str, SettingDoc(
        "A trained classifier (.npz; docs/classify.md).", pattern=r".+", form="the path of a file")]
    second: Annotated[Literal["auto", "off"], SettingDoc(
        "auto: texts with a small margin go to the second embedder, if the file was trained with it. off: never.")] = "auto"
    second_wait_s: Annotated[float, SettingDoc(
        "Longest wait for the second embedder; then the first one's label counts.", minimum=0, maximum=10)] = 0.02

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """The guard of a route: patterns of secrets and of prompt injections in what users and tools wrote. It finds phrasings
    that are known; it makes nothing safe.
    """

    secrets: Annotated[OnMatch, SettingDoc("Keys, tokens and private keys in a prompt.")] = "ignore"
    injections: Annotated[OnMatch, SettingDoc("Known phrasings of prompt injections.")] = "ignore"
    classifier: Annotated[str, SettingDoc("A classifier that also judges the question. Empty: none.")] = ""
    block_labels: Annotated[tuple[str, ...], SettingDoc("Its labels that block a request.")] = ()
    flag_labels: Annotated[tuple[str, ...], SettingDoc("Its labels that flag a request.")] = ()
    cap_s: Annotated[float, SettingDoc("Longest time of a guard.", minimum=0.0001, maximum=1)] = 0.003
    max_chars: Annotated[int, SettingDoc(
        "Longest text, the newest first; what is older is not read.", minimum=100, maximum=1_000_000)] = 20_000
    unfinished: Annotated[Literal["open", "closed"], SettingDoc(
        "If the guard reaches cap_s or max_chars, or its classifier fails. open: the request continues, with a note. "
        "closed: it is rejected (422).")] = "open"

    def __post_init__(self) -> None:
        check_bounds(self)
        if (self.block_labels or self.flag_labels) and not self.classifier:
            raise ValueError("block_labels and flag_labels need a classifier")
        if self.classifier and not (self.block_labels or self.flag_labels):
            raise ValueError("classifier needs block_labels or flag_labels: without them its labels have no effect")
        if both := sorted(set(self.block_labels) & set(self.flag_labels)):
            raise ValueError(f"block_labels and flag_labels both name {both[0]!r}")

    @property
    def is_on(self) -> bool:
        return self.secrets != "ignore" or self.injections != "ignore" or bool(self.classifier)


@dataclass(frozen=True, slots=True)
class ClassRoutesConfig:
    """Another route for requests by the class of their question."""

    by: Annotated[str, SettingDoc("Name of a classifier. Empty: none.")] = ""
    routes: Annotated[Mapping[str, str], SettingDoc(
        "Route by label. Labels that are not named stay on this route.")] = field(default_factory=dict)
    unknown: Annotated[str, SettingDoc("Route for the label `unknown`. Empty: this route.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)
        if (self.routes or self.unknown) and not self.by:
            raise ValueError("routes and unknown need `by`, the name of a classifier")
        if self.by and not (self.routes or self.unknown):
            raise ValueError("by needs routes or unknown: without them its labels have no effect")
