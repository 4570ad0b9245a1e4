"""Speculation in an engine process: one arm, set at its start. llama.cpp ignores its request fields for it (tested)."""

from dataclasses import replace
from typing import Any, TypedDict

from stayfast.engine.config import EngineConfig
from stayfast.policy.speculation.config import AUTO, DRAFT, NGRAM, OFF, Arm

_DRAFT_MODEL, _NGRAMS = "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE", "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE"


class SpeculationLaunch(TypedDict):
    """What the child gets. draft: the path of the model; empty for n-grams. Counts are tokens."""

    draft: str
    n_draft: int
    n_match: int
    n_copied: int


def configs_of_arms(config: EngineConfig) -> dict[str, EngineConfig]:
    """The configuration of each engine process, by arm: several for the mode `auto`, else one. All but the first one choose
    their port.
    """
    settings = config.speculation
    if settings.mode != AUTO:
        return {settings.mode: config}
    arms: tuple[Arm, ...] = (OFF, NGRAM) if config.draft_path is None else (OFF, NGRAM, DRAFT)
    return {arm: replace(config, speculation=replace(settings, mode=arm), port=config.port if arm == OFF else 0)
            for arm in arms}


def name_engine(upstream: str, config: EngineConfig, arm: str) -> str:
    """The name of one engine process of an upstream. The plain one has the upstream's own."""
    return f"{upstream} ({arm})" if config.speculation.mode == AUTO and arm != OFF else upstream


def upstream_of_engine(name: str) -> str:
    """The upstream of an engine process."""
    return name.partition(" (")[0]


def speculation_launch(config: EngineConfig) -> SpeculationLaunch | None:
    """For the child; None: no speculation."""
    settings, draft_path = config.speculation, config.draft_path
    if settings.mode not in (NGRAM, DRAFT):
        return None
    return {"draft": str(draft_path) if settings.mode == DRAFT else "", "n_draft": settings.n_draft,
            "n_match": settings.n_match, "n_copied": settings.n_copied}


def write_speculation(params: Any, launch: SpeculationLaunch, n_threads: int) -> None:
    """Set the speculation of llama.cpp's parameters; `xllamacpp` is imported by the child alone."""
    speculative = params.speculative
    kinds = type(speculative.types[0])
    if not launch["draft"]:
        speculative.types = [kinds[_NGRAMS]]
        speculative.ngram_simple.size_n = launch["n_match"]
        speculative.ngram_simple.size_m = launch["n_copied"]
        return
    speculative.types = [kinds[_DRAFT_MODEL]]
    draft = speculative.draft
    draft.mparams.path = launch["draft"]
    draft.n_max = launch["n_draft"]
    draft.cpuparams.n_threads = n_threads
    draft.cpuparams_batch.n_threads = n_threads
