"""Speculation in the real engine: it guesses, and greedy answers stay the same."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stayfast.engine.config import TINY_DRAFT_PATH, EngineConfig
from stayfast.engine.fit import check_runnable
from stayfast.engine.process import Engine
from stayfast.engine.speculation import configs_of_arms, name_engine, speculation_launch, upstream_of_engine
from stayfast.policy.speculation.config import SpeculationConfig
from tests.engine.random_gguf import write_random_gguf
from tests.engine.rig import Facts, ask, engine_on, metric, soon

TEXT = "Speculation drafts a few tokens with a small model. "
PROMPTS: tuple[Mapping[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "What is speculative decoding?"}], "max_tokens": 64},
    {"messages": [{"role": "user", "content": "How do I reduce tail latency?"}], "max_tokens": 200, "ignore_eos": True},
    {"messages": [{"role": "user", "content": TEXT * 3}], "max_tokens": 100, "ignore_eos": True},
    {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 150, "response_format": {
        "type": "json_schema", "json_schema": {"name": "copies", "schema": {"const": (TEXT * 4).strip()}}}})


def config_of(mode: Any, **speculation: Any) -> EngineConfig:
    return EngineConfig(n_threads=1, n_slots=1, speculation=SpeculationConfig(mode, **speculation))


@asynccontextmanager
async def started(config: EngineConfig) -> AsyncIterator[Engine]:
    engine = engine_on(config, Facts())
    await engine.start()
    try:
        assert await engine.wait_ready(soon())
        yield engine
    finally:
        await engine.stop()


async def complete(engine: Engine, body: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer, greedy."""
    answer = await ask(engine, "/v1/chat/completions", {**body, "temperature": 0})
    found: dict[str, Any] = json.loads(answer.partition("\r\n\r\n")[2])
    return found


@pytest.mark.parametrize("config", [
    config_of("ngram"), config_of("ngram", n_match=2, n_copied=16), config_of("draft"), config_of("draft", n_draft=8)])
def test_engine_greedy_answers_with_speculation_equal_those_without(config: EngineConfig) -> None:
    """For questions, for text beyond the end of an answer, and for copies; and guesses were made."""

    async def answers(of: EngineConfig) -> tuple[list[str], float]:
        async with started(of) as engine:
            found = [(await complete(engine, body))["choices"][0]["message"]["content"] for body in PROMPTS]
            return found, await metric(engine, "spec_decode_num_draft_tokens_total") if of is config else 0.0

    plain, _ = asyncio.run(answers(config_of("off")))
    guessed, n_guessed = asyncio.run(answers(config))
    assert guessed == plain
    assert n_guessed > 0


def test_engine_request_fields_do_not_switch_speculation_off() -> None:
    """Why there is a process for each arm. When this fails, the engine can switch per request: one process is enough."""

    async def main() -> None:
        async with started(config_of("draft")) as engine:
            usual = (await complete(engine, PROMPTS[0]))["timings"]["draft_n"]
            for fields in ({"speculative.n_max": 0}, {"speculative.type": "none"}, {"speculative.types": ["none"]},
                           {"speculative": {"n_max": 0}}):
                assert (await complete(engine, {**PROMPTS[0], **fields}))["timings"]["draft_n"] == usual

    asyncio.run(main())


def test_configs_of_arms_auto_differ_in_their_arm_and_port() -> None:
    """One process has the port of the settings; each has one fixed mode."""
    arms = configs_of_arms(replace(config_of("auto"), port=23_456))
    assert {arm: (config.speculation.mode, config.port) for arm, config in arms.items()} == {
        "off": ("off", 23_456), "ngram": ("ngram", 0), "draft": ("draft", 0)}
    names = [name_engine("tiny", config_of("auto"), arm) for arm in arms]
    assert names == ["tiny", "tiny (ngram)", "tiny (draft)"]
    assert {upstream_of_engine(name) for name in names} == {"tiny"}


def test_configs_of_arms_own_model_without_draft_has_no_draft_arm(tmp_path: Path) -> None:
    own = replace(config_of("auto"), model=str(tmp_path / "own.gguf"))
    assert list(configs_of_arms(own)) == ["off", "ngram"]
    assert list(configs_of_arms(replace(own, speculation=SpeculationConfig("auto", "d.gguf")))) == ["off", "ngram", "draft"]


@pytest.mark.parametrize("mode", ["off", "ngram", "draft"])
def test_configs_of_arms_fixed_mode_is_one_process(mode: str) -> None:
    config = config_of(mode)
    assert configs_of_arms(config) == {mode: config}
    assert name_engine("tiny", config, mode) == "tiny"
    assert (speculation_launch(config) is None) is (mode == "off")


def test_check_runnable_draft_model_is_checked(tmp_path: Path) -> None:
    """Before any process starts, and by the name of the setting."""
    with pytest.raises(ValueError, match=r"^speculation\.draft '.*none\.gguf' cannot be read"):
        check_runnable(config_of("auto", draft=str(tmp_path / "none.gguf")))
    with pytest.raises(ValueError, match=r"^speculation\.draft must be the path of a GGUF file for mode draft"):
        check_runnable(replace(config_of("draft"), model=str(TINY_DRAFT_PATH)))
    check_runnable(config_of("draft"))


@pytest.mark.parametrize("mode", ["auto", "draft"])
def test_check_runnable_draft_with_another_vocabulary_is_refused(tmp_path: Path, mode: str) -> None:
    """llama.cpp would load it and never guess."""
    draft = write_random_gguf(tmp_path / "other.gguf")
    with pytest.raises(ValueError, match=r"^speculation\.draft '.*other\.gguf' has another vocabulary than the model "
                                         r"\(gpt2, 258 tokens, instead of "):
        check_runnable(config_of(mode, draft=str(draft)))
    check_runnable(replace(config_of(mode, draft=str(draft)), model=str(draft)))
    check_runnable(config_of("ngram", draft=str(draft)))
