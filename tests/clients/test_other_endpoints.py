"""Embeddings, completions, models, unknown fields, and many concurrent clients."""

import asyncio
import json

import anthropic
import openai
import pytest

from tests.clients.asks import WHOLE_TEXT, prompt
from tests.clients.callers import MAX_TOKENS
from tests.clients.gateway import DIALECTS, UPSTREAM_MODEL, Gateway
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.sockets
N_AT_ONCE = 20


def test_embeddings(openai_client: openai.OpenAI, upstream: Upstream, marker: str) -> None:
    """The SDK's default (base64 on the wire) and plain floats are the same vectors, in order."""
    inputs = [marker, "four"]
    default = openai_client.embeddings.create(model="via-chat", input=inputs)
    floats = openai_client.embeddings.create(model="via-chat", input=inputs, encoding_format="float")
    assert [seen.body["encoding_format"] for seen in upstream.seen(marker)] == ["base64", "float"]
    assert [item.embedding for item in floats.data] == [[len(text) / 8, 0.5, -0.25] for text in inputs]
    assert [item.embedding for item in default.data] == [item.embedding for item in floats.data]
    assert upstream.wait_for(marker).body["model"] == UPSTREAM_MODEL


def test_embeddings_of_an_upstream_without_any(openai_client: openai.OpenAI, marker: str) -> None:
    """An upstream that has no embeddings makes a clear refusal, not a failure."""
    with pytest.raises(openai.APIStatusError) as caught:
        openai_client.embeddings.create(model="via-messages", input=marker)
    assert 400 <= caught.value.status_code < 500
    assert "embeddings" in caught.value.message


def test_rerank_passes_to_an_upstream_that_speaks_it(openai_client: openai.OpenAI, upstream: Upstream, marker: str) -> None:
    """The request's form is Cohere's v1; unknown fields pass, and the answer arrives as the upstream sent it."""
    body = {"model": "via-chat", "query": marker, "documents": ["a", "abc", "ab"], "top_n": 2, "max_chunks_per_doc": 3}
    answer = openai_client.post("/rerank", body=body, cast_to=dict)
    assert answer["results"] == [{"index": 1, "relevance_score": 0.03}, {"index": 2, "relevance_score": 0.02}]
    assert upstream.wait_for(marker).body == body | {"model": UPSTREAM_MODEL}


def test_rerank_of_an_upstream_without_it_names_the_api(openai_client: openai.OpenAI, marker: str) -> None:
    with pytest.raises(openai.BadRequestError, match="rerank"):
        openai_client.post("/rerank", body={"model": "via-messages", "query": marker, "documents": ["a"]}, cast_to=dict)


def test_completions(openai_client: openai.OpenAI, marker: str) -> None:
    """The oldest API, whole and streamed."""
    whole = openai_client.completions.create(model="via-chat", prompt=marker)
    chunks = list(openai_client.completions.create(model="via-chat", prompt=marker, stream=True))
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks) == f"{marker}!"
    assert chunks[-1].choices[0].finish_reason == "stop"


MODELS = sorted([*(f"{kind}-{name}" for kind in ("brief", "via") for name in DIALECTS), "resumable-chat"])


def test_models(openai_client: openai.OpenAI) -> None:
    """The routes are the models, in a list and by name; another name is a 404."""
    assert sorted(model.id for model in openai_client.models.list()) == MODELS
    assert openai_client.models.retrieve("via-chat").object == "model"
    with pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("no-such-model")


def test_models_for_anthropic(anthropic_client: anthropic.Anthropic) -> None:
    """Anthropic's SDK reads the same list."""
    assert sorted(model.id for model in anthropic_client.models.list()) == MODELS


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_unknown_fields_pass_between_equal_dialects(
        openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, upstream: Upstream, marker: str,
        streams: bool) -> None:
    """What a client says beyond the protocol reaches an upstream of the same dialect just as it was said."""
    extra = {"x_priority": 3, "x_nested": {"deep": [1.50, None, "ü", {"a": True}]}, "x_big": 12345678901234567890}
    ask = prompt(marker)
    openai_client.chat.completions.create(
        model="via-chat", messages=[{"role": "user", "content": ask}], stream=streams, extra_body=extra)
    openai_client.responses.create(model="via-responses", input=ask, stream=streams, extra_body=extra)
    anthropic_client.messages.create(
        model="via-messages", max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": ask}], stream=streams,
        extra_body=extra)
    all_seen = upstream.seen(marker)
    assert [seen.path for seen in all_seen] == ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
    for seen in all_seen:
        assert {name: seen.body[name] for name in extra} == extra
        assert "1.5" in seen.text
        assert '"ü"' in seen.text or json.dumps("ü") in seen.text


def test_headers_of_anthropic_pass(anthropic_client: anthropic.Anthropic, upstream: Upstream, marker: str) -> None:
    """The version and betas that a client asks for reach the upstream, with the gateway's key and not the client's."""
    anthropic_client.messages.create(
        model="via-messages", max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": prompt(marker)}],
        extra_headers={"anthropic-beta": "some-beta-2026-01-01"})
    headers = upstream.wait_for(marker).headers
    assert headers["anthropic-beta"] == "some-beta-2026-01-01"
    assert headers["anthropic-version"]
    assert headers["x-api-key"] == "sk-upstream-key"
    assert "sk-client" not in str(headers)


def test_raw_headers(openai_client: openai.OpenAI, marker: str) -> None:
    """An answer says who gave it, at which attempt, and where its time went."""
    raw = openai_client.chat.completions.with_raw_response.create(
        model="via-chat", messages=[{"role": "user", "content": prompt(marker)}],
        extra_headers={"x-request-id": "mine-1"})
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-stayfast-upstream"] == "chat"
    assert raw.headers["x-stayfast-attempts"] == "1"
    assert "call;dur=" in raw.headers["server-timing"]


def test_many_at_a_time(gateway: Gateway) -> None:
    """Streams of both SDKs and all pairs of dialects side by side: each client gets its own whole answer."""
    async def send_questions() -> list[str]:
        async with (
            openai.AsyncOpenAI(base_url=gateway.openai_url, api_key="sk-client", max_retries=0) as client,
            anthropic.AsyncAnthropic(base_url=gateway.origin, api_key="sk-client", max_retries=0) as other,
        ):
            async def ask_openai(model: str) -> str:
                async with client.responses.stream(model=model, input="Hello") as stream:
                    return (await stream.get_final_response()).output_text

            async def ask_anthropic(model: str) -> str:
                async with other.messages.stream(model=model, max_tokens=MAX_TOKENS,
                                                 messages=[{"role": "user", "content": "Hello"}]) as messages:
                    return await messages.get_final_text()

            models = [f"via-{name}" for name in DIALECTS] * (N_AT_ONCE // len(DIALECTS))
            return await asyncio.gather(*(ask(model) for model in models for ask in (ask_openai, ask_anthropic)))

    assert set(asyncio.run(send_questions())) == {WHOLE_TEXT}
