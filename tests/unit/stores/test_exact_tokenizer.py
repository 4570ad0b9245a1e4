"""Vocabularies inside packages and files."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stayfast.stores.exact_tokenizer import NoTokenizer, TokenizerSlot, load_tokenizer


def tokenizer_file() -> str:
    """A tokenizer.json that a package of the tests brings."""
    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "tokenizers/l2_supercat_tokenizer_config.json")


@pytest.mark.parametrize(("name", "token_ids"), [
    ("o200k_base", [24912, 2375]), ("cl100k_base", [15339, 1917]), (tokenizer_file(), [22172, 3186])])
def test_load_tokenizer_encodes_by_its_vocabulary(name: str, token_ids: list[int]) -> None:
    """The published ids of two words; no token is added around them."""
    assert load_tokenizer(name).encode("hello world") == token_ids


def test_load_tokenizer_special_tokens_in_a_text_are_text() -> None:
    """A client cannot end a text by writing the name of an end mark."""
    assert len(load_tokenizer("o200k_base").encode("<|endoftext|>")) > 1


def test_load_tokenizer_missing_file_names_it() -> None:
    """And what to do."""
    with pytest.raises(NoTokenizer, match=r"there is no file /nowhere/tokenizer\.json: give the path"):
        load_tokenizer("/nowhere/tokenizer.json")


def test_load_tokenizer_file_of_another_form_is_refused(tmp_path: Path) -> None:
    """A file that is no vocabulary."""
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(NoTokenizer, match="is not a vocabulary that the package tokenizers reads"):
        load_tokenizer(str(path))


@pytest.mark.parametrize(("name", "package"), [("o200k_base", "bpe_openai"), (tokenizer_file(), "tokenizers")])
def test_load_tokenizer_missing_package_names_the_extra(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of an extra may be absent."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NoTokenizer, match=rf"needs the package {package}.*pip install '\.\[tokens\]'"):
        load_tokenizer(name)


def test_tokenizer_slot_is_loaded_once() -> None:
    """All routes share it."""
    slot = TokenizerSlot(tokenizer_file())
    assert slot.tokenizer is None
    assert slot.load() is slot.load() is slot.tokenizer
