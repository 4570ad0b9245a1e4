"""The token counters of routes, and their vocabularies."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.compose.token_counters import load_tokenizers, tokenizer_slots
from stayfast.core.types import Api
from stayfast.settings import SettingsError
from stayfast.settings.load import SettingsText, load_settings
from stayfast.testing import SimLoop
from stayfast.wire.request_body import decode

HELLO = b'{"model":"m","prompt":"hello world"}'


def system(tokenizer: str, old: System | None = None) -> System:
    """Two routes with one vocabulary, and one without."""
    text = ("upstreams: {p: {kind: openai, key: k, base_url: 'http://127.0.0.1:1/v1'}}\n"
            f"routes: {{m: {{upstreams: [p], context: {{tokenizer: {tokenizer}}}}},\n"
            f"         n: {{upstreams: [p], context: {{tokenizer: {tokenizer}}}}}, plain: [p]}}")
    settings = load_settings(SettingsText("test", text), {})
    loop = SimLoop()
    try:
        return build(settings, Observers(settings, loop), {}, loop, Random(1), old=old)
    finally:
        loop.close()


def test_token_counters_load_one_vocabulary_for_all_routes() -> None:
    """Before that, and on a route without one, counts are estimates."""
    routes = system("o200k_base").gateway.router.routes
    asked = decode(Api.TOKENIZE, HELLO)
    assert b'"stayfast_estimated":true' in routes["m"].policy.counting.answer(asked)
    assert len(tokenizer_slots(routes)) == 1
    assert asyncio.run(load_tokenizers(routes)) == []
    for name in ("m", "n"):
        assert routes[name].policy.counting.answer(asked) == (
            b'{"count":2,"max_model_len":null,"tokens":[24912,2375],"token_strs":null}')
    assert b'"stayfast_estimated":true' in routes["plain"].policy.counting.answer(asked)


def test_token_counters_reload_keeps_the_loaded_vocabulary() -> None:
    """It takes a second to load."""
    old = system("cl100k_base")
    asyncio.run(load_tokenizers(old.gateway.router.routes))
    new = system("cl100k_base", old)
    assert tokenizer_slots(new.gateway.router.routes) == tokenizer_slots(old.gateway.router.routes)


def test_token_counters_unusable_file_is_reported(tmp_path: Path) -> None:
    """The route then counts by its usage."""
    path = tmp_path / "tokenizer.json"
    path.write_text("[]")
    routes = system(str(path)).gateway.router.routes
    assert [str(path) in error for error in asyncio.run(load_tokenizers(routes))] == [True]
    assert b'"stayfast_estimated":true' in routes["m"].policy.counting.answer(decode(Api.TOKENIZE, HELLO))


def test_token_counters_missing_file_is_an_error_at_load() -> None:
    """By the name of the setting."""
    with pytest.raises(SettingsError, match=r"routes\.m\.context\.tokenizer: no such file: .*/nowhere/tokenizer\.json"):
        system("/nowhere/tokenizer.json")


def test_token_counters_missing_package_is_an_error_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what installs it."""
    monkeypatch.setattr("stayfast.settings.consistency.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"tokenizer: needs the package bpe_openai, .*: pip install '\.\[tokens\]'"):
        system("o200k_base")


def test_token_counters_of_an_upstream_count_use_it_first() -> None:
    """By the setting of the route."""
    routes = system("upstream").gateway.router.routes
    assert routes["m"].policy.counting.uses_upstream
    assert not routes["plain"].policy.counting.uses_upstream
