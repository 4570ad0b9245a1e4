"""Large whole answers, whose texts are not decoded, have the same summary as small ones."""

import json
from typing import Any

import pytest

from stayfast.core.types import AnswerSummary, Api
from stayfast.wire.chat.stream_decoder import LARGE_BYTES
from stayfast.wire.transcode import make_transcoder
from tests.unit.wire.recorded import request
from tests.unit.wire.whole_answers import ANSWERS


def read(api: Api, client: Api, said: dict[str, Any], padding: int) -> tuple[bytes | None, AnswerSummary]:
    """An answer with so much more in it, in one piece."""
    body = json.dumps({"padding": "x" * padding, **said}).encode()
    coder = make_transcoder(api, request(client), source_streams=False, upstream="up", created_at=77)
    coder.feed(body)
    assert coder.n_held_bytes == len(body)
    last = coder.finish()
    return None if last is None else last.data, coder.summary


def seen(summary: AnswerSummary) -> tuple[object, ...]:
    """The compared fields of a summary."""
    return (summary.is_complete, summary.usage, summary.response_id, summary.finish_reason, summary.n_content,
            None if summary.failure is None else str(summary.failure))


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS, Api.MESSAGES, Api.RESPONSES])
@pytest.mark.parametrize("change", [
    {}, {"error": {"message": "no", "type": "server_error"}}, {"choices": []}, {"choices": [{"text": 5}], "data": 5},
    {"choices": [{"message": {"content": "a"}, "finish_reason": 7}], "usage": None, "id": 4},
    {"choices": "none", "content": "none", "output": "none", "data": "none"}])
def test_large_answer_has_the_same_summary_as_a_small_one(api: Api, change: dict[str, Any]) -> None:
    """Usage, id, reason and failures; a body that is good passes verbatim."""
    said = {**ANSWERS[api], **change}
    small, large = read(api, api, said, 1), read(api, api, said, LARGE_BYTES)
    assert seen(small[1]) == seen(large[1])
    assert (small[0] is None) is (large[0] is None)
    assert large[0] is None or json.loads(large[0]) == {"padding": "x" * LARGE_BYTES, **said}


def test_large_answer_is_translated_like_a_small_one() -> None:
    """Its texts are skipped only where they pass as they are."""
    small, large = (read(Api.CHAT, Api.MESSAGES, ANSWERS[Api.CHAT], n)[0] for n in (1, LARGE_BYTES))
    assert small is not None
    assert small == large
