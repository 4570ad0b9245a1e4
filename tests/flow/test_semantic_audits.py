"""What a semantic hit is counted as, and what an audit that runs does to those who ask meanwhile, on virtual time."""

import asyncio

import msgspec
import pytest

from stayfast.core.events import AttemptDone, RequestDone
from stayfast.core.types import CacheControl
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.testing import Script, SendText, SimLoop, Wait, run
from tests.flow.semantic_rig import NO, ONE, SAME, SAME_TOO, YES, SemanticRig, ask

ALWAYS = SemanticConfig(threshold=0.9, audit_share=1.0)
LATER: Script = [Wait(4.0), SendText(YES)]


@pytest.mark.parametrize("control", [None, CacheControl(only_if_cached=True)])
def test_semantic_audit_delays_no_request(control: CacheControl | None) -> None:
    """The same question during an audit has the same answer at once, and no second audit starts."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, [SendText(YES)], LATER, [SendText(NO)], semantic=ALWAYS)
        await rig.text(ask(ONE))
        await rig.finish_learning()
        for _ in range(3):
            asked_at = loop.now()
            assert await rig.text(ask(SAME), control if rig.lookups.count("hit") else None) == YES
            assert loop.now() == asked_at
            await asyncio.sleep(0.1)
        assert rig.results == ["miss", "semantic", "semantic", "semantic"]
        await rig.finish_learning()
        assert rig.lookups == ["no_neighbour", "hit", "audit_started", "hit", "hit", "audit_right"]
        assert rig.n_calls == 2
        assert [attempt.role for attempt in rig.sink.facts_of(AttemptDone)] == ["first", "audit"]
        rig.check_clean()

    run(main)


def test_semantic_audit_is_not_made_for_only_if_cached() -> None:
    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, [SendText(YES)], semantic=ALWAYS)
        await rig.text(ask(ONE))
        await rig.finish_learning()
        assert await rig.text(ask(SAME), CacheControl(only_if_cached=True)) == YES
        await rig.finish_learning()
        assert rig.lookups == ["no_neighbour", "hit"]

    run(main)


def test_semantic_cache_answer_that_cannot_be_streamed_is_a_miss() -> None:
    """It is neither a hit nor audited; the new answer is learned."""

    async def main(loop: SimLoop) -> None:
        rig = SemanticRig(loop, [SendText(YES)], semantic=ALWAYS)
        await rig.text(ask(ONE))
        await rig.finish_learning()
        store, key = rig.route_cache.store, rig.sink.facts_of(RequestDone)[0].cache_key
        assert key is not None
        stored = await store.get(key)
        assert stored is not None
        body = msgspec.json.encode({**msgspec.json.decode(stored.body), "citations": ["https://a.example"]})
        await store.put(key, msgspec.structs.replace(stored, body=body))
        for question in (SAME, SAME_TOO):
            assert await rig.text(ask(question)) == YES
            await rig.finish_learning()
        assert rig.results == ["miss", "miss", "semantic"]
        assert rig.lookups == ["no_neighbour", "unstreamable", "hit", "audit_started", "audit_right"]
        rig.check_clean()

    run(main)
