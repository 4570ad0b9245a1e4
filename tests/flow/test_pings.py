"""What counts as silence: pings buy no time, neither before the first token nor after it, and fill no memory."""

import msgspec
import pytest

from stayfast.core.deadline import Timeouts
from stayfast.core.errors import DeadlineExceeded, Fault, UpstreamFailed
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


@pytest.mark.parametrize("is_translated", [True, False])
def test_pings_do_not_delay_the_idle_limit(is_translated: bool) -> None:
    """`idle_s` counts from the last progress: a client of another dialect gets no byte of a ping."""

    async def main(loop: SimLoop) -> None:
        rig = Rig(loop, [(SendText("a"), *(Wait(2), PING, Wait(0.2), ROLE) * 3)], timeouts=Timeouts(idle_s=3))
        reply = await rig.serve(messages() if is_translated else chat())
        with pytest.raises(DeadlineExceeded) as late:
            await read(reply)
        assert (late.value.limit, loop.now()) == ("idle_s", 3.0)
        assert "3 s" in late.value.message

    run(main)


def test_pings_between_tokens_do_not_end_an_answer() -> None:
    async def main(loop: SimLoop) -> None:
        words = [step for word in "abc" for step in (SendText(word), Wait(2), PING, Wait(0.5))]
        rig = Rig(loop, [words], timeouts=Timeouts(idle_s=3))
        body = await read(await rig.serve(messages()))
        assert body.count(b"text_delta") == 3
        assert b"message_stop" in body

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
