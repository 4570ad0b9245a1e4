"""What counts as silence: pings keep a running stream alive, buy no time before its first token, and fill no memory."""

import msgspec
import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.types import Api, Request
from stayfast.pipeline.attempts import attempt as lead
from stayfast.testing import SendBytes, SendText, SimLoop, Wait, run
from stayfast.wire.request_body import decode
from tests.flow.rig import Rig, chat, read

PING = SendBytes(b": ping\n\n")
ROLE = SendBytes(b'data: {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n')


def messages() -> Request:
    """A request of a client of another dialect, to whom pings are not passed on."""
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    return decode(Api.MESSAGES, msgspec.json.encode(body))


def test_pings_keep_a_translated_stream_alive() -> None:
    """`idle_s` counts from the last read, also where it holds nothing for the client."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [(SendText("a"), *(Wait(2), PING) * 3, Wait(2), SendText("b"))], timeouts=Timeouts(idle_s=3))
        body = await read(await rig.serve(messages()))
        assert body.count(b"text_delta") == 2
        assert b"message_stop" in body
        assert loop.now() == 8.0

    run(main)


def test_pings_do_not_delay_the_first_token_limit() -> None:
    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [(*(Wait(0.5), PING) * 20, SendText("late"))], timeouts=Timeouts(first_token_s=2))
        with pytest.raises(UpstreamFailed) as failed:
            await rig.serve()
        assert (failed.value.code, loop.now()) == ("first_token_s_exceeded", 2.0)

    run(main)


@pytest.mark.parametrize("n_fits", [3, 4])
def test_leading_events_without_content_are_bounded(monkeypatch: pytest.MonkeyPatch, n_fits: int) -> None:
    """An upstream that sends everything but content is cut; what fits the bound goes out with the content."""
    monkeypatch.setattr(lead, "MAX_HELD_BACK_BYTES", len(ROLE.data) * n_fits)

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [[*[ROLE] * 4, SendText("a")]])
        if n_fits == 4:
            assert (await read(await rig.serve(chat()))).startswith(ROLE.data * 4)
            return
        with pytest.raises(UpstreamFailed, match="sent no content in the first") as failed:
            await rig.serve(chat())
        assert failed.value.fault is Fault.MALFORMED
        assert (rig.n_open, rig.n_in_flight) == (0, 0)

    run(main)
