"""Engines that share a machine: one size for all processes of an upstream, memory for all of them, slots of their own."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stayfast.compose.embedded import limit_to_slots
from stayfast.compose.engines import Engines, make_engines
from stayfast.core.clock import SystemClock
from stayfast.core.events import Fanout
from stayfast.engine.config import TINY_PATH, EngineConfig
from stayfast.engine.fit import describe_fits, find_misfits, fit_engine, fit_engines
from stayfast.engine.model_file import read_shape
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.speculation.config import SpeculationConfig
from tests.engine.chats import HEAD, answer, chat
from tests.engine.rig import random_config, serve_engine

MIB = float(1 << 20)
ALL_ARMS = EngineConfig(speculation=SpeculationConfig("auto"))


def set_memory(monkeypatch: pytest.MonkeyPatch, *mib: float) -> None:
    """The machine's available memory at each look, the last one for ever."""
    left = list(mib)
    monkeypatch.setattr("stayfast.engine.fit.available_memory", lambda: MIB * (left.pop(0) if len(left) > 1 else left[0]))


def sizes_of(configs: Sequence[EngineConfig]) -> list[tuple[int, bool]]:
    return [(fit.size.n_slots, fit.size.fits) for fit in fit_engines(configs)]


def test_fit_engine_auto_counts_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and caches of three processes, and the draft model of one."""
    set_memory(monkeypatch, 64 * 1024)
    one, three = fit_engine(EngineConfig()).size, fit_engine(ALL_ARMS).size
    draft = read_shape(TINY_PATH.with_name("stayfast-draft-q8_0.gguf"))
    assert three.weight_bytes == 3 * one.weight_bytes + draft.weight_bytes(None)
    assert three.kv_bytes > 3 * one.kv_bytes
    assert (fit_engine(replace(ALL_ARMS, speculation=SpeculationConfig("ngram"))).size.need_bytes) == one.need_bytes
    needs = 1.05 * three.need_bytes / 0.9 / MIB
    set_memory(monkeypatch, needs)
    fixed = replace(ALL_ARMS, n_slots=three.n_slots, ctx_per_slot=three.ctx_per_slot)
    assert find_misfits({"tiny": fixed}) == []
    set_memory(monkeypatch, 0.5 * needs)
    assert "in 3 processes" in find_misfits({"tiny": fixed})[0]
    assert find_misfits({"tiny": replace(fixed, speculation=SpeculationConfig("off"))}) == []


def test_fit_engines_second_upstream_has_what_the_first_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = EngineConfig(n_slots=4, ctx_per_slot=2048)
    needs = fit_engine(fixed).size.need_bytes / MIB
    set_memory(monkeypatch, 1.5 * needs)
    assert sizes_of([fixed]) == [(4, True)]
    assert sizes_of([fixed, fixed]) == [(4, True), (4, False)]
    assert find_misfits({"one": fixed, "two": fixed})[0].startswith("upstreams.two: model ")


def test_make_engines_all_processes_have_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is looked at once: it may change from one look to the next."""
    set_memory(monkeypatch, 1500, 900, 700)
    engines = make_engines({"tiny": ALL_ARMS}, lambda _: Fanout(), SystemClock(), Random(1))
    assert list(engines) == ["tiny", "tiny (ngram)", "tiny (draft)"]
    assert len({engine.n_slots for engine in engines.values()}) == 1


def test_engines_reload_keeps_size_of_running_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gateway that is rebuilt reads the number of slots from the engine, whatever memory is free by then."""
    set_memory(monkeypatch, 16 * 1024, 370)
    config = random_config(tmp_path, n_slots="auto", ctx_per_slot=512)

    async def main() -> None:
        engines = Engines(Fanout(), SystemClock(), Random(1))
        await engines.start_missing({"local": config})
        try:
            before, n_slots = engines["local"], engines["local"].n_slots
            assert await engines.start_missing({"local": config}) == []
            assert (engines["local"], engines["local"].n_slots) == (before, n_slots)
            assert fit_engine(config).size.n_slots != n_slots  # what a second look would give
        finally:
            await engines.stop()

    asyncio.run(main())


def test_engines_that_do_not_fit_together_are_not_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = random_config(tmp_path, n_slots=2, ctx_per_slot=1024)
    set_memory(monkeypatch, 1.5 * fit_engine(config).size.need_bytes / MIB)

    async def main() -> None:
        engines = Engines(Fanout(), SystemClock(), Random(1))
        with pytest.raises(ValueError, match="are usable"):
            await engines.start_missing({"one": config, "two": config})
        with pytest.raises(KeyError):
            engines["one"]

    asyncio.run(main())


def test_engines_with_one_model_and_folder_keep_their_slots(tmp_path: Path) -> None:
    """Each finds its own conversation again; the second one to stop does not delete the files of the first one."""
    config = random_config(tmp_path, n_slots=2, ctx_per_slot=2048, slots_folder=str(tmp_path / "slots"))

    async def run(n_turns: int) -> list[int]:
        async with AsyncExitStack() as stack:
            upstreams = [(await stack.enter_async_context(serve_engine(config, name)))[1] for name in ("one", "two")]
            return [(await answer(upstream, chat(name, n_turns))).cached_read
                    for upstream, name in zip(upstreams, ("one", "two"), strict=True)]

    assert asyncio.run(run(1)) == [0, 0]
    assert len(list((tmp_path / "slots").glob("*.json"))) == 2
    assert min(asyncio.run(run(2))) > len(HEAD) + 200


@pytest.mark.parametrize(("limit", "n_slots", "most"), [
    (LimitConfig(), 4, 4), (LimitConfig(), None, 10_000), (LimitConfig(max=50), 4, 50), (LimitConfig(min=20), 4, 4),
    (LimitConfig("aimd"), 8, 8), (LimitConfig("fixed", max=2), 4, 2)])
def test_limit_to_slots_unset_maximum_is_the_slots(limit: LimitConfig, n_slots: int | None, most: int) -> None:
    """More would wait in the engine, without priorities. A number that was set stays."""
    assert limit_to_slots(limit, n_slots).ceiling == most


def test_limit_to_slots_off_stays_off() -> None:
    assert limit_to_slots(LimitConfig("off"), 4) == LimitConfig("off")


def test_describe_fits_names_processes() -> None:
    lines = describe_fits({"tiny": ALL_ARMS, "plain": EngineConfig()})
    assert [line.partition(":")[0] for line in lines] == ["tiny"] * 3 + ["plain"] * 3
    assert "in each of 3 processes" in lines[1]
    assert "processes" not in lines[4]
