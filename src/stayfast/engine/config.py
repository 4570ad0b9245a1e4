"""What the embedded engine runs and how, and whether it can run at all."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

TINY = "tiny"
TINY_TEMPERATURE = 0.1
TINY_ALIAS = "stayfast-tiny"
TINY_PATH = Path(__file__).parent / "models" / "stayfast-tiny-q8_0.gguf"

_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The embedded engine: `model` is "tiny" (ships with the package) or the path of a GGUF file. Seconds, tokens, MiB.

    n_threads: 0 means all cores but one, which is left to the gateway. n_slots: answers generated at the same time, each
    with a context of `ctx_per_slot` tokens. port: 0 means that one is chosen. prompt_cache_mib: memory for the prompts of
    idle slots; llama.cpp's own default is 8 GiB, too much for a process that lives beside a gateway.
    """

    model: str = TINY
    n_threads: int = 0
    n_slots: int = 4
    ctx_per_slot: int = 2048
    port: int = 0
    prompt_cache_mib: int = 256
    ready_timeout_s: float = 30.0
    restart_base_s: float = 0.25
    restart_cap_s: float = 30.0
    healthy_after_s: float = 10.0  # ready for so long, a crash counts as the first one again

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError(f'model must be "{TINY}" or the path of a GGUF file')
        for name, low, high in (("n_threads", 0, 512), ("n_slots", 1, 256), ("ctx_per_slot", 64, 1_048_576),
                                ("prompt_cache_mib", 0, 1_048_576)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
        if self.port != 0 and not 1024 <= self.port <= 65_535:
            raise ValueError(f"port must be 0 (chosen) or 1024 to 65535, not {self.port}")
        if not 0 < self.ready_timeout_s <= 3600:
            raise ValueError(f"ready_timeout_s must be more than 0 and at most 3600 seconds, not {self.ready_timeout_s}")
        if not 0 < self.restart_base_s <= self.restart_cap_s <= 3600:
            raise ValueError("0 < restart_base_s <= restart_cap_s <= 3600 must hold, "
                             f"not restart_base_s={self.restart_base_s}, restart_cap_s={self.restart_cap_s}")
        if self.healthy_after_s < 0:
            raise ValueError(f"healthy_after_s must not be negative, not {self.healthy_after_s}")

    @property
    def alias(self) -> str:
        """The model's name in answers; the file's, without its folders."""
        return TINY_ALIAS if self.model == TINY else self.model_path.stem

    @property
    def default_temperature(self) -> float | None:
        """For requests that name none; None: llama.cpp's own. A model this small rambles at the usual 0.8."""
        return TINY_TEMPERATURE if self.model == TINY else None

    @property
    def model_path(self) -> Path:
        """The GGUF file to load."""
        return TINY_PATH if self.model == TINY else Path(self.model)


def check_runnable(config: EngineConfig) -> None:
    """Raise ValueError, in words for whoever set `model`, when the engine cannot start here: no runtime, no GGUF file.

    A file that begins like a GGUF file may still be cut short: that shows when the engine loads it.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise ValueError("the embedded engine is not installed: it is the extra `embedded` "
                         "(in the source folder: pip install '.[embedded]')")
    path = config.model_path
    if path.exists() and not path.is_file():
        raise ValueError(f"model {str(path)!r} is not a file")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ValueError(f"model {str(path)!r} cannot be read: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise ValueError(f"model {str(path)!r} is not a GGUF file")
