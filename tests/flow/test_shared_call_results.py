"""What a request that shares a call is counted as, and that a call that runs takes the place of a background refresh."""

import asyncio

from stayfast.core.errors import UpstreamFailed
from stayfast.core.events import Renewed
from stayfast.core.types import CacheControl
from stayfast.testing import Script, SendText, SimLoop, Wait, run
from tests.flow.cache_rig import HELLO, CacheRig
from tests.flow.rig import read, text_of
from tests.flow.stale_rig import DOWN, StaleRig

SLOW: Script = [Wait(5.0), SendText("new")]


def test_failure_of_a_shared_call_is_counted_as_coalesced() -> None:
    """Of three equal requests the first makes a call, the second makes one after its failure, and the third makes none."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, DOWN)
        failures = await asyncio.gather(rig.text(), rig.text(), rig.text(), return_exceptions=True)
        assert [type(failure) for failure in failures] == [UpstreamFailed] * 3
        assert sorted(map(str, rig.results)) == ["coalesced", "miss", "miss"]
        assert rig.n_calls == 2
        rig.check_clean()

    run(main)


def test_stale_answer_starts_no_refresh_while_a_call_runs() -> None:
    """A client that accepts no stored answer is having a new one made."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, SLOW)
        assert await rig.text() == "Hello"
        await asyncio.sleep(70)
        forced = asyncio.create_task(rig.text(control=CacheControl(no_cache=True)))
        await asyncio.sleep(1)
        reply = await rig.serve_request()
        assert text_of(await read(reply)) == "Hello"
        assert await forced == "new"
        await asyncio.sleep(10)
        assert (rig.n_calls, rig.sink.facts_of(Renewed)) == (2, [])
        assert await rig.text() == "new"
        rig.check_clean()

    run(main)


def test_failed_refresh_is_not_replaced_by_the_template() -> None:
    """No client waits for it: it is reported as failed, and the stale answer stays."""

    async def main(loop: SimLoop) -> None:
        rig = StaleRig(loop, HELLO, DOWN, DOWN)
        rig.change_policy(template="Please try later.")
        assert await rig.text() == "Hello"
        await asyncio.sleep(70)
        for _ in range(2):
            assert await rig.text() == "Hello"
            await asyncio.sleep(1)
        assert [fact.result for fact in rig.sink.facts_of(Renewed)] == ["failed", "failed"]
        rig.check_clean()

    run(main)
