"""Checks that an engine can run on this machine, before anything is loaded."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

from stayfast.engine.config import EngineConfig
from stayfast.engine.machine import available_memory, n_cores
from stayfast.engine.model_file import read_shape, read_vocabulary
from stayfast.policy.engines.sizing import BLOCK_VALUES, EngineSize, ModelShape, explain_misfit, explain_size, size_engine
from stayfast.policy.speculation.config import AUTO, DRAFT

_GGUF_MAGIC = b"GGUF"
_MOST_MORE_TOKENS = 128  # of one of two vocabularies that share all others, as in llama.cpp
_N_SPECIAL = 5  # first tokens, which may differ


def check_runnable(config: EngineConfig) -> None:
    """Raises ValueError if the engine cannot start: no runtime, no GGUF file or a damaged one, or too little memory."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ValueError("the embedded engine is not installed. It is the extra `embedded`: in the source folder, "
                         "pip install '.[embedded]'")
    path, draft_path = config.model_path, config.draft_path
    _check_gguf("model", path)
    if config.speculation.mode == DRAFT and draft_path is None:
        raise ValueError("speculation.draft must be the path of a GGUF file for mode draft")
    if draft_path is not None and config.speculation.mode in (AUTO, DRAFT):
        _check_gguf("speculation.draft", draft_path)
        _check_vocabulary(path, draft_path)
    if config.slots_folder is not None and not Path(config.slots_folder).absolute().parent.is_dir():
        raise ValueError(f"slots_folder {config.slots_folder!r}: its parent folder does not exist")
    shape, size = fit_engine(config)
    for name in ("cache_type_k", "cache_type_v"):
        if getattr(config, name) != "f16" and shape.head_size % BLOCK_VALUES:
            raise ValueError(f"{name} must be f16 for this model: its heads have {shape.head_size} values, and the others "
                             f"store blocks of {BLOCK_VALUES}")
    if not size.fits:
        raise ValueError(f"model {str(path)!r} {explain_misfit(shape, size, config.wanted_size)}")


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


def _check_vocabulary(path: Path, draft_path: Path) -> None:
    """A draft model with another vocabulary loads without an error, and never guesses."""
    (kind, tokens), (draft_kind, draft_tokens) = read_vocabulary(path), read_vocabulary(draft_path)
    n = min(len(tokens), len(draft_tokens))
    if (kind != draft_kind or max(len(tokens), len(draft_tokens)) - n > _MOST_MORE_TOKENS
            or tokens[_N_SPECIAL:n] != draft_tokens[_N_SPECIAL:n]):
        raise ValueError(f"speculation.draft {str(draft_path)!r} has another vocabulary than the model ({draft_kind}, "
                         f"{len(draft_tokens):,} tokens, instead of {kind}, {len(tokens):,}), so it cannot guess its "
                         "tokens: use a smaller model of the same family, or mode ngram")


class EngineFit(NamedTuple):
    """A model's shape, and slots and context for this machine."""

    shape: ModelShape
    size: EngineSize


def fit_engine(config: EngineConfig) -> EngineFit:
    """The model's shape, and slots and context for this machine as it is now. Raises ValueError for a damaged file."""
    shape = read_shape(config.model_path)
    return EngineFit(shape, size_engine(shape, config.wanted_size, n_cores=n_cores(), available_bytes=available_memory()))


def describe_fit(config: EngineConfig) -> list[str]:
    """Lines for a reader: what the model takes, and what fits. Raises ValueError for a damaged file."""
    return explain_size(*fit_engine(config))
