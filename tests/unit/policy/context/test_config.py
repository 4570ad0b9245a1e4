"""Settings of a route's context."""

import pytest

from stayfast.policy.context.config import LEARNED, UPSTREAM, VOCABULARIES, ContextConfig


@pytest.mark.parametrize("tokenizer", [LEARNED, UPSTREAM, *VOCABULARIES, "/srv/models/qwen/tokenizer.json"])
def test_context_config_tokenizer_of_a_known_form_is_accepted(tokenizer: str) -> None:
    """A vocabulary, a file or the upstream's own count."""
    assert ContextConfig(tokenizer).tokenizer == tokenizer


@pytest.mark.parametrize("tokenizer", ["o200k", "gpt2", "/srv/tokenizer.model", " upstream"])
def test_context_config_tokenizer_of_an_unknown_form_names_the_choices(tokenizer: str) -> None:
    """A vocabulary that is in no package is an error at load."""
    with pytest.raises(ValueError, match=r"^tokenizer must be empty, upstream, o200k_base, cl100k_base or a path"):
        ContextConfig(tokenizer)
