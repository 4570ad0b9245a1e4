"""No answer in other words ever crosses a scope, though to the embedder all texts are one."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.testing import SimLoop, run
from tests.flow.rig import read, text_of
from tests.flow.semantic_rig import N_DIMS, SemanticRig, WordEmbedder, answers_of, ask

TENANTS = ("a", "b", None)
SYSTEMS = ("", "You are brief.", "You are brief!")
PARENTS: tuple[list[dict[str, Any]], ...] = (
    [], [{"role": "user", "content": "Which accounts are there?"}, {"role": "assistant", "content": "Two."}],
    [{"role": "user", "content": "Which accounts are there?"}, {"role": "assistant", "content": "Three."}])
MORE: tuple[dict[str, Any], ...] = (
    {}, {"response_format": {"type": "json_object"}}, {"temperature": 0.2}, {"max_tokens": 10}, {"user": "u"},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]})
WAYS = [f"{begins} {verb} the password of {of}?" for begins in ("How can I", "Where can I", "Can somebody tell where to")
        for verb in ("reset", "restore", "recover", "renew") for of in ("an account", "a profile", "such an account")]


class AllAlike(WordEmbedder):
    """Everything has one vector."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The first direction."""
        rows = np.zeros((len(texts), N_DIMS), dtype=np.float32)
        rows[:, 0] = 1.0
        return rows


@pytest.mark.parametrize("seed", range(2))
def test_semantic_scope_is_never_crossed(seed: int) -> None:
    """A thousand requests over tenants, system prompts, parents, formats, tools and sampling, streamed or not."""

    async def main(loop: SimLoop) -> None:
        rng = Random(seed)
        rig = SemanticRig(loop, *answers_of("-"), semantic=SemanticConfig(threshold=0.5, audit_share=0.05))
        rig.embedding.foreground = rig.embedding.background = AllAlike()
        for _ in range(1000):
            who = (rng.choice(TENANTS), rng.choice(SYSTEMS), rng.randrange(len(PARENTS)), rng.randrange(len(MORE)))
            tenant, system, parent, more = who
            rig.scripted[0].scripts = answers_of(f"for {who}")
            request = ask(rng.choice(WAYS), before=PARENTS[parent], system=system, stream=rng.random() < 0.5, **MORE[more])
            reply = await rig.serve_request(request, tenant=tenant)
            body = await read(reply)
            reply.close()
            assert f"for {who}" in (text_of(body) if request.stream else body.decode())
            await asyncio.sleep(0.1)
        assert rig.results.count("semantic") > 200
        assert rig.results.count("hit") > 10
        await rig.finish_learning()
        rig.check_clean()

    run(main)
