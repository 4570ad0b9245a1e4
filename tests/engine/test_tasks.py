"""Vectors, scores and types of the KV cache from the real child, on random weights: the protocol, not the quality."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stayfast.core.clock import SystemClock
from stayfast.core.deadline import Deadline
from stayfast.core.types import Api
from stayfast.upstreams.base import Call
from stayfast.wire.request_body import decode
from tests.engine.rig import BOUND_S, Facts, ask, engine_on, random_config, serve_engine, soon

ONE = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}


def ask_engine(tmp_path: Path, path: str, body: dict[str, Any], **changes: Any) -> tuple[int, Any]:
    """The status and the JSON of one answer of an engine with these settings."""

    async def main() -> str:
        engine = engine_on(random_config(tmp_path, **changes), Facts())
        await engine.start()
        try:
            assert await engine.wait_ready(soon())
            return await ask(engine, path, body)
        finally:
            await engine.stop()

    answer = asyncio.run(asyncio.wait_for(main(), BOUND_S))
    head, _, text = answer.partition("\r\n\r\n")
    return int(head.split()[1]), json.loads(text[text.index("{"):text.rindex("}") + 1])


@pytest.mark.parametrize("pooling", ["auto", "mean", "cls", "last"])
def test_engine_embed_task_gives_vector_of_each_text(tmp_path: Path, pooling: str) -> None:
    """A model whose file names no pooling works with `auto` too."""
    status, answer = ask_engine(tmp_path, "/v1/embeddings", {"input": ["one", "other"]}, task="embed", pooling=pooling)
    assert status == 200
    assert [len(row["embedding"]) for row in answer["data"]] == [128, 128]
    assert answer["data"][0]["embedding"] != answer["data"][1]["embedding"]


def test_engine_embed_task_accepts_text_of_whole_context(tmp_path: Path) -> None:
    """llama.cpp's usual batch of 512 tokens does not bound a text."""
    status, answer = ask_engine(tmp_path, "/v1/embeddings", {"input": "a" * 1000}, task="embed")
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 1000)


def test_engine_rerank_task_scores_each_document(tmp_path: Path) -> None:
    status, answer = ask_engine(tmp_path, "/v1/rerank", {"query": "q", "documents": ["one", "other"]}, task="rerank")
    assert (status, {row["index"] for row in answer["results"]}) == (200, {0, 1})


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_engine_cache_type_of_values_works(tmp_path: Path, kind: str) -> None:
    """Quantised values need flash attention, which the child switches on."""
    status, answer = ask_engine(tmp_path, "/v1/chat/completions", ONE, cache_type_k=kind, cache_type_v=kind)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 4)


@pytest.mark.parametrize(("task", "api", "body", "rows"), [
    ("embed", Api.EMBEDDINGS, {"input": ["one", "other"]}, "data"),
    ("rerank", Api.RERANK, {"query": "q", "documents": ["one", "other"]}, "results")])
def test_local_upstream_of_task_serves_its_api_alone(tmp_path: Path, task: Any, api: Api, body: dict[str, Any], rows: str
                                                     ) -> None:
    """Through the upstream, as the gateway sends it."""

    async def main() -> bytes:
        async with serve_engine(random_config(tmp_path, task=task)) as (_, upstream):
            assert upstream.can_serve(api)
            assert not upstream.can_serve(Api.CHAT)
            request = decode(api, json.dumps({"model": "m", **body}).encode())
            stream = await upstream.open(Call(request, "m", "r", Deadline(SystemClock.now() + BOUND_S), 5.0))
            data = b""
            while (chunk := await stream.next()) is not None:
                data += chunk.data
            stream.close()
            return data

    assert len(json.loads(asyncio.run(main()))[rows]) == 2
