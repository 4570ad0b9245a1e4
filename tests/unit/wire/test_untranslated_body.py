"""Embeddings and token counts in their own dialect."""

import pytest

from stayfast.core.types import AnswerSummary, Api, Usage
from stayfast.wire.untranslated_body import UntranslatedDecoder


def read(api: Api, body: bytes) -> AnswerSummary:
    """The summary of a whole answer."""
    summary = AnswerSummary()
    UntranslatedDecoder("up", api, summary).read_body(body)
    return summary


def test_untranslated_decoder_complete_answers_have_their_usage() -> None:
    """A count of tokens has none."""
    summary = read(Api.EMBEDDINGS, b'{"data":[{"embedding":[1]}],"usage":{"prompt_tokens":3}}')
    assert (summary.is_complete, summary.usage) == (True, Usage(3))
    assert read(Api.COUNT_TOKENS, b'{"input_tokens":3}').is_complete


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"error":{"message":"m"}}', b'{"data":5,"input_tokens":"x"}'])
@pytest.mark.parametrize("api", [Api.EMBEDDINGS, Api.COUNT_TOKENS])
def test_untranslated_decoder_other_bodies_are_failures(api: Api, body: bytes) -> None:
    """Nothing is raised."""
    summary = read(api, body)
    assert summary.failure is not None
    assert not summary.is_complete
