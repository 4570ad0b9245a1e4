"""Answers that the gateway writes itself: the model list, and a fixed text in any dialect."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from stayfast.core.types import AnswerSummary, Request, Usage
from stayfast.wire.dialect import Begin, Delta, Finish, TextDelta
from stayfast.wire.transcode import DONE_TERMINATED_APIS, AnswerRewriter, encode_events, make_collector, make_encoder


def render_model_list(names: Iterable[str], created: int) -> bytes:
    """The body of `GET /v1/models`, with the fields that both vendors' SDKs read. `created`: seconds since the epoch."""
    stamp = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    listed = list(names)
    models = [{"id": name, "object": "model", "created": created, "owned_by": "stayfast",
               "type": "model", "display_name": name, "created_at": stamp, "lifecycle": "active"} for name in listed]
    return msgspec.json.encode({"object": "list", "data": models, "has_more": False,
                                "first_id": listed[0] if listed else None, "last_id": listed[-1] if listed else None})


def render_text_answer(request: Request, text: str, *, answer_id: str, created_at: int) -> bytes:
    """The body of an answer that is `text` and counts no tokens, whole or streamed as `request` asks. `created_at`: seconds
    since the epoch. Raises ValueError for an API whose answers are not text.
    """
    if not request.api.can_stream:
        raise ValueError(f"{request.api.value} answers hold no text")
    deltas: list[Delta] = [Begin(answer_id, request.model, created_at, Usage()), TextDelta(text), Finish("stop")]
    encoder = make_encoder(request, created_at)
    if not request.stream:
        summary = AnswerSummary()
        summary.usage = Usage()
        rewrite = AnswerRewriter(encoder, make_collector(request.api))
        rewrite.add_deltas(deltas)
        return rewrite.build_body(summary)
    events = [event for delta in deltas for event in encoder.encode_delta(delta)] + encoder.encode_end(Usage())
    return encode_events(events, ends_with_done=request.api in DONE_TERMINATED_APIS)
