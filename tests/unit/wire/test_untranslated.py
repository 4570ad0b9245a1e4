"""Embeddings and token counts: always whole, in one dialect."""

import pytest

from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import AnswerSummary, Api, Usage
from stayfast.wire.untranslated import UntranslatedDecoder


def _read(api: Api, body: bytes) -> AnswerSummary:
    summary = AnswerSummary()
    UntranslatedDecoder("up", api, summary).read_body(body)
    return summary


def test_embeddings_answer_complete_with_usage() -> None:
    summary = _read(Api.EMBEDDINGS, b'{"data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":3}}')
    assert (summary.is_complete, summary.usage) == (True, Usage(input_total=3))


def test_token_count_complete() -> None:
    assert _read(Api.COUNT_TOKENS, b'{"input_tokens":3}').is_complete


@pytest.mark.parametrize("api", [Api.EMBEDDINGS, Api.COUNT_TOKENS])
@pytest.mark.parametrize(("body", "fault"), [(b"{}", Fault.MALFORMED), (b"[", Fault.MALFORMED),
                                             (b'{"error":{"message":"no"}}', Fault.IN_BAND)])
def test_untranslated_without_content_failure(api: Api, body: bytes, fault: Fault) -> None:
    failure = _read(api, body).failure
    assert isinstance(failure, UpstreamFailed)
    assert failure.fault is fault
