"""The settings of speculation at an embedded engine."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from stayfast.core.setting import SettingDoc, check_bounds

OFF: Final = "off"
NGRAM: Final = "ngram"
DRAFT: Final = "draft"
AUTO: Final = "auto"
Arm = Literal["off", "ngram", "draft"]


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Tokens; shares 0 to 1."""

    mode: Annotated[Literal["off", "auto", "ngram", "draft"], SettingDoc(
        "off, ngram, draft: always. auto: one engine process for each of them, and the one with the most tokens a second "
        "answers; each process has its own prompt cache (docs/speculation.md).")] = "off"
    draft: Annotated[str, SettingDoc(
        "Draft model: path of a GGUF file with the vocabulary of `model`. Empty: the one that comes with model tiny, else "
        "none.")] = ""
    n_draft: Annotated[int, SettingDoc(
        "Tokens that the draft model guesses before each check.", minimum=1, maximum=64)] = 2
    n_match: Annotated[int, SettingDoc(
        "n-grams: the last tokens that must have occurred before.", minimum=1, maximum=64)] = 4
    n_copied: Annotated[int, SettingDoc(
        "n-grams: tokens after that occurrence which are guessed.", minimum=1, maximum=256)] = 8
    explore_share: Annotated[float, SettingDoc(
        "auto: most requests, as a share, that try another arm than the best one.", minimum=0, maximum=0.2)] = 0.02
    min_output_tokens: Annotated[int, SettingDoc(
        "auto: no speculation for answers that are expected to be shorter.", minimum=0, maximum=100_000)] = 32

    def __post_init__(self) -> None:
        check_bounds(self)
