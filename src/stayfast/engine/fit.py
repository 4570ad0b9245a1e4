"""Checks that an engine can run on this machine, before anything is loaded."""

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from stayfast.engine.config import EngineConfig
from stayfast.engine.machine import available_memory, n_cores
from stayfast.engine.model_file import read_shape, read_vocabulary
from stayfast.engine.speculation import configs_of_arms
from stayfast.policy.engines.sizing import (
    BLOCK_VALUES,
    EngineSize,
    ModelShape,
    WantedSize,
    explain_misfit,
    explain_size,
    size_engine,
)
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
    fit = fit_engine(config)
    shape = fit.shape
    for name in ("cache_type_k", "cache_type_v"):
        if getattr(config, name) != "f16" and shape.head_size % BLOCK_VALUES:
            raise ValueError(f"{name} must be f16 for this model: its heads have {shape.head_size} values, and the others "
                             f"store blocks of {BLOCK_VALUES}")
    check_fits(config, fit)


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
    """A model's shape, what its settings want, and slots and context for this machine."""

    shape: ModelShape
    wanted: WantedSize
    size: EngineSize


def fit_engines(configs: Iterable[EngineConfig]) -> list[EngineFit]:
    """Slots and context for this machine as it is now, of upstreams that start together: each may use what those before it
    leave. Raises ValueError for a damaged file.
    """
    found, available, n = [], available_memory(), n_cores()
    for config in configs:
        shape, wanted = read_shape(config.model_path), _want_size(config)
        size = size_engine(shape, wanted, n_cores=n, available_bytes=available)
        available = None if available is None else max(0.0, available - size.need_bytes)
        found.append(EngineFit(shape, wanted, size))
    return found


def fit_engine(config: EngineConfig) -> EngineFit:
    """Of one upstream alone."""
    return fit_engines([config])[0]


def check_fits(config: EngineConfig, fit: EngineFit) -> None:
    """Raises ValueError if the model needs more memory than there is."""
    if not fit.size.fits:
        raise ValueError(f"model {str(config.model_path)!r} {explain_misfit(fit.shape, fit.size, fit.wanted)}")


def find_misfits(configs: Mapping[str, EngineConfig]) -> list[str]:
    """The models, by upstream, for which the others leave too little memory, and why."""
    found = []
    for (name, config), fit in zip(configs.items(), fit_engines(configs.values()), strict=True):
        try:
            check_fits(config, fit)
        except ValueError as error:
            found.append(f"upstreams.{name}: {error}")
    return found


def _want_size(config: EngineConfig) -> WantedSize:
    """With all processes that the upstream will have."""
    modes = configs_of_arms(config)
    draft_path = config.draft_path if DRAFT in modes else None
    return replace(config.wanted_size, n_processes=len(modes),
                   draft=read_shape(draft_path) if draft_path is not None else None)


def describe_fits(configs: Mapping[str, EngineConfig]) -> list[str]:
    """Lines for a reader, by upstream: what the models take, and what fits. Raises ValueError for a damaged file."""
    return [f"{name}: {line}" for name, (shape, wanted, size) in zip(configs, fit_engines(configs.values()), strict=True)
            for line in explain_size(shape, size, wanted)]
