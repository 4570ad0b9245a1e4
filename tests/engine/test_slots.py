"""Slots of the real child, on random weights: conversations return, answers run together, a restart loses nothing."""

import asyncio
from pathlib import Path

import pytest

from stayfast.engine.config import EngineConfig
from tests.engine.chats import HEAD, answer, chat
from tests.engine.rig import metric, random_config, serve_engine


def test_local_upstream_conversations_return_to_their_slots(tmp_path: Path) -> None:
    """Left to llama.cpp, the second conversation overwrites the first one, because it begins alike."""

    async def main(*, by_prefix: bool) -> list[int]:
        config = random_config(tmp_path, n_slots=4, ctx_per_slot=4096, slots_by_prefix=by_prefix)
        async with serve_engine(config) as (_, upstream):
            for name in ("one", "two", "six"):
                await answer(upstream, chat(name))
            return [(await answer(upstream, chat(name, 2))).cached_read for name in ("one", "two", "six")]

    ours = asyncio.run(main(by_prefix=True))
    theirs = asyncio.run(main(by_prefix=False))
    assert min(ours) > len(HEAD) + 200  # tokens are bytes here: the instructions and the first question
    assert min(theirs) < min(ours)


@pytest.mark.parametrize("by_prefix", [True, False])
@pytest.mark.parametrize("field", ['"id_slot"', '"id\\u005fslot"'])
def test_local_upstream_slot_of_client_is_ignored(tmp_path: Path, field: str, by_prefix: bool) -> None:
    """A client that names the slots of others, also with an escaped name, overwrites none: theirs stays in the cache."""

    async def main() -> int:
        config = random_config(tmp_path, n_slots=2, ctx_per_slot=2048, slots_by_prefix=by_prefix, prompt_cache_mib=0)
        async with serve_engine(config) as (_, upstream):
            await answer(upstream, chat("one"))
            for number in range(2):
                await answer(upstream, [{"role": "user", "content": "x" * 600}], more=f", {field}: {number}")
            return (await answer(upstream, chat("one", 2))).cached_read

    assert asyncio.run(main()) > len(HEAD)


def test_engine_answers_run_together(tmp_path: Path) -> None:
    """By llama.cpp's own counter: most steps compute a token of several answers."""

    async def main() -> float:
        config = random_config(tmp_path, n_slots=4, ctx_per_slot=1024)
        async with serve_engine(config) as (engine, upstream):
            await asyncio.gather(*(answer(upstream, [{"role": "user", "content": name}], 800) for name in "abcd"))
            return await metric(engine, "n_busy_slots_per_decode")

    assert asyncio.run(main()) > 2.0


def test_engine_saved_slots_are_restored_by_next_start(tmp_path: Path) -> None:
    """Only where the operator names a folder; files are private and deleted once they are read."""
    folder = tmp_path / "slots"
    config = random_config(tmp_path, n_slots=4, ctx_per_slot=4096, slots_folder=str(folder))

    async def first() -> None:
        async with serve_engine(config) as (_, upstream):
            await answer(upstream, chat("one"))
            await answer(upstream, chat("two"))

    async def second() -> list[int]:
        async with serve_engine(config) as (_, upstream):
            assert list(folder.iterdir()) == []
            return [(await answer(upstream, chat(name, 2))).cached_read for name in ("two", "one")]

    asyncio.run(first())
    saved = sorted(folder.iterdir())
    assert [path.suffix for path in saved] == [".bin", ".bin", ".json"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in saved} == {0}
    assert b"one" not in saved[-1].read_bytes()
    assert min(asyncio.run(second())) > len(HEAD) + 200


def test_engine_saved_slots_of_other_model_file_are_deleted(tmp_path: Path) -> None:
    """Another context, type or file: nothing is restored."""
    folder = tmp_path / "slots"
    config = random_config(tmp_path, n_slots=4, ctx_per_slot=4096, slots_folder=str(folder))

    async def main(config: EngineConfig, n_turns: int) -> int:
        async with serve_engine(config) as (_, upstream):
            return (await answer(upstream, chat("one", n_turns))).cached_read

    asyncio.run(main(config, 1))
    other = random_config(tmp_path, n_slots=4, ctx_per_slot=2048, slots_folder=str(folder))
    assert asyncio.run(main(other, 2)) == 0


def test_engine_slots_beyond_disk_bound_are_not_saved(tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    config = random_config(tmp_path, n_slots=4, ctx_per_slot=4096, slots_folder=str(folder), slots_disk_mib=3)

    async def main() -> None:
        async with serve_engine(config) as (_, upstream):
            for name in ("one", "two", "six"):  # 2 MB each
                await answer(upstream, chat(name))

    asyncio.run(main())
    assert [path.suffix for path in sorted(folder.iterdir())] == [".bin", ".json"]
