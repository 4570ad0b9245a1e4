"""Settings of the embedded engine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.policy.engines.sizing import WantedSize
from stayfast.policy.speculation.config import SpeculationConfig

TINY = "tiny"
TINY_TEMPERATURE = 0.1
TINY_ALIAS = "stayfast-tiny"
TINY_PATH = Path(__file__).parent / "models" / "stayfast-tiny-q8_0.gguf"
TINY_DRAFT_PATH = TINY_PATH.with_name("stayfast-draft-q8_0.gguf")

CacheType = Literal["f16", "q8_0", "q4_0"]
EngineTask = Literal["generate", "embed", "rerank"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Seconds, tokens, MiB."""

    model: Annotated[str, SettingDoc("`tiny` (comes with Stayfast) or the path of a GGUF file.")] = TINY
    task: Annotated[EngineTask, SettingDoc(
        "generate: answers. embed: vectors of texts (/v1/embeddings). rerank: scores of documents (/v1/rerank); the model "
        "must be a reranker.")] = "generate"
    pooling: Annotated[Literal["auto", "mean", "cls", "last"], SettingDoc(
        "Of `embed`: how the vectors of tokens become one. auto: as the file says; last, where it says nothing.")] = "auto"
    n_threads: Annotated[int, SettingDoc("Engine threads; 0: one less than the cores.", minimum=0, maximum=512)] = 0
    n_slots: Annotated[int | Literal["auto"], SettingDoc(
        "Answers generated at the same time; each slot caches one conversation. auto: by cores and memory.",
        minimum=1, maximum=256)] = "auto"
    ctx_per_slot: Annotated[int | Literal["auto"], SettingDoc(
        "Tokens of prompt and answer together, per slot. auto: the model's own, at most 8192, less where memory is short.",
        minimum=64, maximum=1_048_576)] = "auto"
    slots_by_prefix: Annotated[bool, SettingDoc(
        "Send a conversation to the slot that holds it. false: llama.cpp chooses, as it does with several workers.")] = True
    slots_folder: Annotated[str | None, SettingDoc(
        "Folder in which the slots are saved when the gateway stops, and from which they are restored. They contain "
        "prompts. Default: not saved.")] = None
    slots_disk_mib: Annotated[int, SettingDoc(
        "Most disk space of saved slots, MiB; the last used are saved first.", minimum=1, maximum=1_048_576)] = 1024
    port: Annotated[int, SettingDoc(
        "TCP port of the engine on 127.0.0.1, 1024 or higher; 0: any free one.", minimum=0, maximum=65_535)] = 0
    # llama.cpp's own default is 8 GiB
    prompt_cache_mib: Annotated[int, SettingDoc(
        "Memory for the prompts of idle slots, MiB.", minimum=0, maximum=1_048_576)] = 256
    cache_type_k: Annotated[CacheType, SettingDoc(
        "Type of the keys in the KV cache: f16, q8_0 (53 % of the memory of f16) or q4_0 (28 %).")] = "f16"
    cache_type_v: Annotated[CacheType, SettingDoc(
        "Type of the values in the KV cache; another one than f16 turns flash attention on.")] = "f16"
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
    def wanted_size(self) -> WantedSize:
        return WantedSize(None if self.n_slots == "auto" else self.n_slots,
                          None if self.ctx_per_slot == "auto" else self.ctx_per_slot,
                          self.cache_type_k, self.cache_type_v, float(self.prompt_cache_mib << 20))

    @property
    def draft_path(self) -> Path | None:
        """The draft model; None: there is none."""
        if self.speculation.draft:
            return Path(self.speculation.draft)
        return TINY_DRAFT_PATH if self.model == TINY else None
