"""OpenAI's SDK, and a client with Cohere's and Jina's shapes, against the encoder of the gateway itself."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from stayfast.stores.onnx_embedder import OnnxEncoder
from tests.clients.gateway import Gateway, started
from tests.flow.real_embedder import weights

__all__ = ["weights"]
pytestmark = pytest.mark.sockets
SETTINGS = """
server: {{host: 127.0.0.1}}
upstreams: {{minilm: {{kind: encoder}}}}
routes: {{minilm: [minilm]}}
embedder: {{cache_dir: "{folder}", max_tokens: 64, max_waiting_tokens: 2000}}
jobs: {{path: "{folder}/jobs"}}
"""
TEXTS = ["How do I reset my password?", "I forgot my login code.", "The weather in Paris is mild."]


@pytest.fixture(scope="module")
def gateway(weights: tuple[OnnxEncoder, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("encoder")
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS.format(folder=weights[1]))
    with started(settings, folder) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.openai_url, api_key="none", max_retries=8)


def post(gateway: Gateway, path: str, **body: Any) -> tuple[int, dict[str, str], Any]:
    """Status, headers, body."""
    request = urllib.request.Request(f"{gateway.origin}{path}", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), json.load(error)


def test_sdk_embeddings_are_those_of_the_model(client: openai.OpenAI, weights: tuple[OnnxEncoder, Path]) -> None:
    """base64 is the SDK's default; both forms are the same vectors, in order."""
    coded = client.embeddings.create(model="minilm", input=TEXTS)
    plain = client.embeddings.create(model="minilm", input=TEXTS, encoding_format="float")
    vectors = np.array([one.embedding for one in coded.data], np.float32)
    assert np.allclose(vectors, np.array([one.embedding for one in plain.data], np.float32), atol=1e-6)
    assert vectors.shape == (3, 384)
    assert (vectors * weights[0].embed_all(TEXTS)).sum(axis=1).min() > 0.95
    assert plain.usage.prompt_tokens == sum(len(weights[0].tokenize(text)[0]) for text in TEXTS)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


def test_sdk_single_text(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="minilm", input=TEXTS[0], dimensions=384)
    assert np.linalg.norm(answer.data[0].embedding) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("fields", "param"), [
    ({"input": "word " * 100}, "input"), ({"input": ["a", "word " * 100]}, "input[1]"), ({"input": [1, 2]}, "input"),
    ({"input": "a", "dimensions": 16}, "dimensions"), ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": []}, "input"), ({"input": ""}, "input")])
def test_sdk_errors_name_the_field(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm", **fields)
    assert caught.value.param == param


def test_rerank_in_the_shape_of_cohere_and_jina(client: openai.OpenAI, gateway: Gateway) -> None:
    """Cohere's clients read id, results and meta; Jina's read model, usage and results."""
    client.embeddings.create(model="minilm", input="waits until the encoder is loaded")
    status, _, body = post(gateway, "/v1/rerank", model="minilm", query=TEXTS[0], documents=[TEXTS[2], {"text": TEXTS[1]}],
                           top_n=1, return_documents=True)
    assert status == 200
    [best] = body["results"]
    assert (best["index"], best["document"]) == (1, {"text": TEXTS[1]})
    assert -1 <= best["relevance_score"] <= 1
    assert body["usage"]["total_tokens"] > 10
    assert body["id"].startswith("rerank-")
    assert body["model"] == "minilm"


@pytest.mark.parametrize(("fields", "param"), [
    ({"documents": None}, "documents"), ({"documents": []}, "documents"), ({"documents": ["a", 7]}, "documents[1]"),
    ({"documents": [{"title": "a"}]}, "documents[0].text"), ({"query": None}, "query"), ({"query": ["a"]}, "query"),
    ({"top_n": 0}, "top_n"), ({"top_n": -3}, "top_n"), ({"top_n": 10**30}, "top_n"),
    ({"documents": ["a"] * 10_001}, "documents"), ({"documents": ["word " * 100]}, "documents[0]")])
def test_rerank_with_a_hostile_field_is_400_and_names_it(gateway: Gateway, client: openai.OpenAI, fields: dict[str, Any],
                                                         param: str) -> None:
    client.embeddings.create(model="minilm", input="waits until the encoder is loaded")
    status, _, body = post(gateway, "/v1/rerank", **{"model": "minilm", "query": "q", "documents": ["a"], **fields})
    assert (status, body["error"]["param"]) == (400, param)


def test_rerank_of_ten_thousand_documents_is_413_or_answered(gateway: Gateway, client: openai.OpenAI) -> None:
    """Different ones exceed the bound of tokens; equal ones are one text. A top_n beyond the documents means all."""
    client.embeddings.create(model="minilm", input="waits until the encoder is loaded")
    many = [f"number {n}" for n in range(10_000)]
    status, _, body = post(gateway, "/v1/rerank", model="minilm", query="q", documents=many)
    assert (status, body["error"]["code"], body["error"]["param"]) == (413, "too_many_tokens", "documents")
    status, _, body = post(gateway, "/v1/rerank", model="minilm", query="q", documents=["a"] * 10_000, top_n=20_000)
    assert (status, len(body["results"])) == (200, 10_000)


def test_too_many_tokens_and_other_apis_are_refused(client: openai.OpenAI, gateway: Gateway) -> None:
    client.embeddings.create(model="minilm", input="waits until the encoder is loaded")
    status, _, body = post(gateway, "/v1/embeddings", model="minilm", input=[f"{n} {n * 7}" for n in range(900)])
    assert (status, body["error"]["code"]) == (413, "too_many_tokens")
    status, _, body = post(gateway, "/v1/chat/completions", model="minilm", messages=[{"role": "user", "content": "Hi"}])
    assert status == 400
    assert "chat" in body["error"]["message"]


def test_overload_is_429_with_retry_after(client: openai.OpenAI, gateway: Gateway) -> None:
    """Of requests that exceed the bound together, some are answered, and the rest learn when to come back."""
    client.embeddings.create(model="minilm", input="waits until the encoder is loaded")
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda part: post(gateway, "/v1/embeddings", model="minilm", input=[
            f"text {n} of part {part} at {time.time()}" for n in range(60)]), range(6)))
    assert {status for status, _, _ in found} == {200, 429}
    refused = [(headers, body) for status, headers, body in found if status == 429]
    assert all(body["error"]["code"] == "encoder_busy" and float(headers["retry-after"]) >= 1 for headers, body in refused)
    text = client.embeddings.create(model="minilm", input=[f"again {n}" for n in range(60)])  # the SDK waits and retries
    assert len(text.data) == 60


def test_metrics_count_texts_and_padding(client: openai.OpenAI, gateway: Gateway) -> None:
    client.embeddings.create(model="minilm", input=[f"{time.time()} {n}" for n in range(8)])
    with urllib.request.urlopen(f"{gateway.origin}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    line = next(line for line in text.splitlines() if line.startswith("stayfast_encoder_texts_total{") and "encoded" in line
                and "foreground" in line)
    assert float(line.split()[-1]) >= 8
