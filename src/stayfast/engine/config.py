"""Settings of the embedded engine, and a check that it can run."""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.speculation.config import AUTO, DRAFT, SpeculationConfig

TINY = "tiny"
TINY_TEMPERATURE = 0.1
TINY_ALIAS = "stayfast-tiny"
TINY_PATH = Path(__file__).parent / "models" / "stayfast-tiny-q8_0.gguf"
TINY_DRAFT_PATH = TINY_PATH.with_name("stayfast-draft-q8_0.gguf")

_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Seconds, tokens, MiB."""

    model: Annotated[str, SettingDoc("`tiny` (comes with Stayfast) or the path of a GGUF file.")] = TINY
    n_threads: Annotated[int, SettingDoc("Engine threads; 0: one less than the cores.", minimum=0, maximum=512)] = 0
    n_slots: Annotated[int, SettingDoc("Answers generated at the same time.", minimum=1, maximum=256)] = 4
    ctx_per_slot: Annotated[int, SettingDoc(
        "Tokens of prompt and answer together, per slot.", minimum=64, maximum=1_048_576)] = 2048
    port: Annotated[int, SettingDoc(
        "TCP port of the engine on 127.0.0.1, 1024 or higher; 0: any free one.", minimum=0, maximum=65_535)] = 0
    # llama.cpp's own default is 8 GiB
    prompt_cache_mib: Annotated[int, SettingDoc(
        "Memory for the prompts of idle slots, MiB.", minimum=0, maximum=1_048_576)] = 256
    ready_timeout_s: Annotated[float, SettingDoc("Time limit for loading the model.", more_than=0, maximum=3600)] = 30.0
    restart_base_s: Annotated[float, SettingDoc(
        "Wait before the first restart after a crash; doubles each time.", more_than=0, maximum=3600)] = 0.25
    restart_cap_s: Annotated[float, SettingDoc("Longest wait before a restart.", more_than=0, maximum=3600)] = 30.0
    healthy_after_s: Annotated[float, SettingDoc("After this time without a crash, the wait starts over.", minimum=0)] = 10.0
    speculation: Annotated[SpeculationConfig, SettingDoc(
        "Guessing tokens ahead of the model (docs/speculation.md).")] = field(default_factory=SpeculationConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.model:
            raise ValueError(f'model must be "{TINY}" or the path of a GGUF file')
        if 0 < self.port < 1024:
            raise ValueError(f"port must be 0 (chosen) or 1024 to 65535, not {self.port}")
        if self.restart_base_s > self.restart_cap_s:
            raise ValueError(f"restart_base_s must be at most restart_cap_s ({self.restart_cap_s:g}), not "
                             f"{self.restart_base_s:g}")

    @property
    def alias(self) -> str:
        """The model's name in answers: of a file, its name without folders and suffix."""
        return TINY_ALIAS if self.model == TINY else self.model_path.stem

    @property
    def default_temperature(self) -> float | None:
        """For requests without one; None: llama.cpp's own. At the usual 0.8 the tiny model writes nonsense."""
        return TINY_TEMPERATURE if self.model == TINY else None

    @property
    def model_path(self) -> Path:
        return TINY_PATH if self.model == TINY else Path(self.model)

    @property
    def draft_path(self) -> Path | None:
        """The draft model; None: there is none."""
        if self.speculation.draft:
            return Path(self.speculation.draft)
        return TINY_DRAFT_PATH if self.model == TINY else None


def check_runnable(config: EngineConfig) -> None:
    """Raises ValueError if the engine cannot start: no runtime, or no GGUF file. Does not find a truncated file."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ValueError("the embedded engine is not installed. It is the extra `embedded`: in the source folder, "
                         "pip install '.[embedded]'")
    _check_gguf("model", config.model_path)
    draft_path = config.draft_path
    if config.speculation.mode == DRAFT and draft_path is None:
        raise ValueError("speculation.draft must be the path of a GGUF file for mode draft")
    if draft_path is not None and config.speculation.mode in (AUTO, DRAFT):
        _check_gguf("speculation.draft", draft_path)


def _check_gguf(setting: str, path: Path) -> None:
    if path.exists() and not path.is_file():
        raise ValueError(f"{setting} {str(path)!r} is not a file")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ValueError(f"{setting} {str(path)!r} cannot be read: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise ValueError(f"{setting} {str(path)!r} is not a GGUF file")
