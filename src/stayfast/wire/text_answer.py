"""A text of ours as a whole answer, or a stream, in the client's own dialect: what a template gives."""

from stayfast.core.types import AnswerSummary, Request, Usage
from stayfast.wire.dialect import Begin, Delta, Finish, TextDelta
from stayfast.wire.transcode import ENDS_WITH_DONE, Rewrite, encode_events, fold_of, writer_of


def render_text_answer(request: Request, text: str, *, answer_id: str, created_at: int) -> bytes:
    """The whole body of an answer that is `text`, of no tokens, in the form that `request` asks for. `created_at`:
    seconds since the epoch. Raises ValueError for requests that ask for no text.
    """
    if not request.api.can_stream:
        raise ValueError(f"{request.api.value} requests ask for no text")
    deltas: list[Delta] = [Begin(answer_id, request.model, created_at, Usage()), TextDelta(text), Finish("stop")]
    writer = writer_of(request, created_at)
    if not request.stream:
        sight = AnswerSummary()
        sight.usage = Usage()
        rewrite = Rewrite(writer, fold_of(request.api))
        rewrite.add(deltas)
        return rewrite.end(sight)
    events = [event for delta in deltas for event in writer.events(delta)] + writer.end(Usage())
    return encode_events(events, ends_with_done=request.api in ENDS_WITH_DONE)
