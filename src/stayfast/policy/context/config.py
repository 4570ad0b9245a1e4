"""The settings of a route's context: how its tokens are counted, and what is left out of its prompts."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.context.diet import DietConfig
from stayfast.policy.context.history import HistoryConfig

LEARNED: Final = ""  # tokens by the ratios that the upstream's own usage has shown
UPSTREAM: Final = "upstream"  # tokens by the upstream's own count endpoint
VOCABULARIES: Final = ("o200k_base", "cl100k_base")  # inside the package bpe-openai


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """What one route sends of a prompt, and how it counts its tokens."""

    tokenizer: Annotated[str, SettingDoc(
        "How input tokens are counted. Empty: estimated by what the upstream's own usage has shown. o200k_base or "
        "cl100k_base: OpenAI's vocabularies. A path of a tokenizer.json: that vocabulary. upstream: its own count endpoint "
        "(docs/tokens.md).", pattern=r"|upstream|o200k_base|cl100k_base|.+\.json",
        form="empty, upstream, o200k_base, cl100k_base or a path that ends in .json")] = LEARNED
    history: Annotated[HistoryConfig, SettingDoc(
        "Long conversations: a summary in place of older turns (docs/context.md).")] = field(default_factory=HistoryConfig)
    diet: Annotated[DietConfig, SettingDoc(
        "What is left out of prompts (docs/prompts.md).")] = field(default_factory=DietConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
