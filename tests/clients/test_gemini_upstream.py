"""OpenAI's and Anthropic's SDKs through the gateway, a process of its own, to the simulated Gemini API."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam

from stayfast.lab.simulated.vendors.gemini import N_A_PIECE, N_CACHED, N_PROMPT, N_THOUGHTS, PIECES, RETRY_S, THOUGHT
from tests.clients.asks import CHAT_TOOL, MESSAGES_TOOL, RESPONSES_TOOL, WEATHER_SCHEMA, Weather
from tests.clients.gateway import Gateway, started
from tests.clients.gemini_rig import GeminiRig, running_gemini

pytestmark = pytest.mark.sockets

WHOLE = "".join(PIECES)
TIMEOUT_S = 20.0
SETTINGS = """
server: {{host: 127.0.0.1}}
upstreams:
  gem: {{kind: gemini, base_url: "{origin}/v1beta", key: sk-upstream-key, probe: false}}
  vertex: {{kind: gemini, base_url: "{origin}/v1/projects/p/locations/l/publishers/google", probe: false,
            headers: {{authorization: "Bearer sk-upstream-key"}}}}
  refused: {{kind: gemini, base_url: "{origin}/v1beta", key: sk-of-nobody, probe: false}}
routes:
  g3: {{upstreams: [gem], model: gemini-3-flash}}
  g2: {{upstreams: [gem], model: models/gemini-2.5-flash}}
  on-vertex: {{upstreams: [vertex], model: gemini-2.5-flash}}
  cached: {{upstreams: [gem], model: gemini-3-flash, cache: {{mode: exact}}, prefix: {{mode: auto}}}}
  retried: {{upstreams: [gem], model: gemini-2.5-flash, retry: {{max_attempts: 2}}}}
  no-key: {{upstreams: [refused], model: gemini-2.5-flash}}
defaults: {{retry: {{max_attempts: 1}}}}
jobs: {{path: "{folder}/jobs"}}
"""


@pytest.fixture(scope="module")
def gemini() -> Iterator[GeminiRig]:
    """The simulated API."""
    with running_gemini() as rig:
        yield rig


@pytest.fixture(scope="module")
def gateway(gemini: GeminiRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway in front of it."""
    folder = tmp_path_factory.mktemp("gateway")
    settings = folder / "stayfast.yaml"
    settings.write_text(SETTINGS.format(origin=gemini.origin, folder=folder))
    with started(settings, folder) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def openai_client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """OpenAI's SDK."""
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-client", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    """Anthropic's SDK."""
    with anthropic.Anthropic(base_url=gateway.origin, api_key="sk-client", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def ask(text: str) -> list[ChatCompletionMessageParam]:
    """A chat of one message."""
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("model", ["g2", "g3", "on-vertex"])
def test_chat_plain_answer_has_text_and_usage(openai_client: openai.OpenAI, model: str) -> None:
    """With an API key, with a name that begins with models/, and at Vertex's address with a bearer token."""
    answer = openai_client.chat.completions.create(model=model, messages=ask("Hi"))
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (WHOLE, "stop")
    assert answer.usage is not None
    n_output = N_A_PIECE * (len(PIECES) + (model == "g3"))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (N_PROMPT, n_output)
    assert answer.usage.total_tokens == N_PROMPT + n_output


def test_chat_stream_has_pieces_thoughts_and_usage(openai_client: openai.OpenAI) -> None:
    """Reasoning tokens are part of the output."""
    chunks = list(openai_client.chat.completions.create(
        model="g2", messages=ask("Hi"), stream=True, stream_options={"include_usage": True}, reasoning_effort="low"))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert [delta.content for delta in deltas if delta.content] == list(PIECES)
    assert [thought for delta in deltas if (thought := getattr(delta, "reasoning_content", None))] == [THOUGHT]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == N_A_PIECE * len(PIECES) + N_THOUGHTS
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == N_THOUGHTS


def test_completions_answer(openai_client: openai.OpenAI) -> None:
    """The older API, whole and streamed."""
    assert openai_client.completions.create(model="g2", prompt="Hi").choices[0].text == WHOLE
    chunks = openai_client.completions.create(model="g2", prompt="Hi", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == WHOLE


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("model", ["g2", "g3"])
def test_chat_tools_round_trip(openai_client: openai.OpenAI, gemini: GeminiRig, model: str, streams: bool) -> None:
    """Two calls and their results; Gemini 3's signature is back in its place, or the simulator would refuse the turn."""
    marker = f"chat-tools-{model}-{streams}"
    asked: Any = {"model": model, "tools": [CHAT_TOOL]}
    messages = ask(f"[tools] {marker}")
    if streams:
        with openai_client.chat.completions.stream(messages=messages, **asked) as stream:
            first: ChatCompletion = stream.get_final_completion()
    else:
        first = openai_client.chat.completions.create(messages=messages, **asked)
    calls = first.choices[0].message.tool_calls or []
    assert first.choices[0].finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in calls if call.type == "function"] == [
        {"city": "Oslo"}, {"city": "Köln"}]
    assert len({call.id for call in calls}) == 2
    said = cast("ChatCompletionMessageParam", first.choices[0].message.model_dump(exclude_none=True))
    results: list[ChatCompletionMessageParam] = [
        {"role": "tool", "tool_call_id": call.id, "content": "4 °C"} for call in calls]
    second = openai_client.chat.completions.create(messages=[*messages, said, *results], **asked)
    assert second.choices[0].message.content == 'The tools answered [{"output":"4 °C"},{"output":"4 °C"}].'
    parts = gemini.last_body(marker)["contents"][1]["parts"]
    assert ["thoughtSignature" in part for part in parts] == [model == "g3", False]
    assert ["id" in part["functionCall"] for part in parts] == [model == "g3"] * 2


@pytest.mark.parametrize("streams", [False, True])
def test_messages_tools_round_trip(anthropic_client: anthropic.Anthropic, gemini: GeminiRig, streams: bool) -> None:
    """The signature is that of a thinking block before the call."""
    marker = f"messages-tools-{streams}"
    asked: Any = {"model": "g3", "max_tokens": 500, "tools": [MESSAGES_TOOL],
                  "thinking": {"type": "enabled", "budget_tokens": 1024}}
    question: Any = {"role": "user", "content": f"[tools] {marker}"}
    if streams:
        with anthropic_client.messages.stream(messages=[question], **asked) as stream:
            first: anthropic.types.Message = stream.get_final_message()
    else:
        first = anthropic_client.messages.create(messages=[question], **asked)
    assert first.stop_reason == "tool_use"
    assert [block.type for block in first.content] == ["thinking", "tool_use", "tool_use"]
    assert first.content[0].type == "thinking"
    assert first.content[0].thinking == THOUGHT
    assert first.usage.output_tokens == 2 * N_A_PIECE + N_THOUGHTS
    results: Any = [{"type": "tool_result", "tool_use_id": block.id, "content": "4 °C"}
               for block in first.content if block.type == "tool_use"]
    second = anthropic_client.messages.create(messages=[
        question, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}], **asked)
    assert [block.text for block in second.content if block.type == "text"] == [
        'The tools answered [{"output":"4 °C"},{"output":"4 °C"}].']
    assert "thoughtSignature" in gemini.last_body(marker)["contents"][1]["parts"][0]


@pytest.mark.parametrize("streams", [False, True])
def test_responses_tools_round_trip(openai_client: openai.OpenAI, gemini: GeminiRig, streams: bool) -> None:
    """The signature is the encrypted content of a reasoning item before the call."""
    marker = f"responses-tools-{streams}"
    asked: Any = {"model": "g3", "tools": [RESPONSES_TOOL], "store": False, "reasoning": {"effort": "low"}}
    question: Any = {"role": "user", "content": f"[args] {marker}"}
    if streams:
        with openai_client.responses.stream(input=[question], **asked) as stream:
            first: Any = stream.get_final_response()
    else:
        first = openai_client.responses.create(input=[question], **asked)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Oslo", "list": [1, 2.5, None, {"deep": True}]}
    items: Any = [item.model_dump(exclude_none=True, exclude={"parsed_arguments", "status"}) for item in first.output]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "4 °C"}
    second = openai_client.responses.create(input=[question, *items, result], **asked)
    assert second.output_text == 'The tools answered [{"output":"4 °C"}].'
    assert "thoughtSignature" in gemini.last_body(marker)["contents"][1]["parts"][0]


def test_text_signature_round_trip(openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic,
                                   gemini: GeminiRig) -> None:
    """Gemini 3 signs its texts as well; the simulator refuses a signature that it has not issued."""
    said = openai_client.chat.completions.create(model="g3", messages=ask("Hi")).choices[0].message
    openai_client.chat.completions.create(model="g3", messages=[
        *ask("Hi"), cast("ChatCompletionMessageParam", said.model_dump(exclude_none=True)), *ask("signed-chat")])
    assert "thoughtSignature" in gemini.body("signed-chat")["contents"][1]["parts"][-1]
    content: Any = anthropic_client.messages.create(model="g3", max_tokens=9, messages=[
        {"role": "user", "content": "Hi"}]).content
    anthropic_client.messages.create(model="g3", max_tokens=9, messages=[
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": content},
        {"role": "user", "content": "signed-messages"}])
    assert "thoughtSignature" in gemini.body("signed-messages")["contents"][1]["parts"][-1]


def test_json_output_is_parsed(openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic) -> None:
    """By a model of pydantic, and by a schema."""
    parsed = openai_client.chat.completions.parse(model="g2", messages=ask("Hi"), response_format=Weather)
    assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=21)
    answer = anthropic_client.messages.create(
        model="g2", max_tokens=50, messages=[{"role": "user", "content": "Hi"}],
        output_config={"format": {"type": "json_schema", "schema": WEATHER_SCHEMA}})
    assert [json.loads(block.text) for block in answer.content if block.type == "text"] == [{"city": "Oslo"}]


def test_cached_content_counts_as_cached_input(openai_client: openai.OpenAI, gemini: GeminiRig) -> None:
    """As Google documents it for OpenAI's SDK: a member `extra_body` inside the body."""
    google = {"google": {"cached_content": "cachedContents/abc"}}
    answer = openai_client.chat.completions.create(model="g2", messages=ask("cached-prompt"),
                                                   extra_body={"extra_body": google})
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == N_CACHED
    assert gemini.body("cached-prompt")["cachedContent"] == "cachedContents/abc"


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_gateways_caches_work_in_front_of_gemini(openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic,
                                                 gemini: GeminiRig, api: str) -> None:
    """One call serves two requests, the second a stream; planning for providers' caches adds nothing to Gemini's body."""
    marker = f"cached-{api} " + "x" * 20_000
    asked: Any = {"model": "cached", "extra_body": {"temperature": 0}}
    question: Any = [{"role": "user", "content": marker}]
    if api == "chat":
        openai_client.chat.completions.create(messages=question, **asked)
        chunks: Any = openai_client.chat.completions.create(messages=question, stream=True, **asked)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    elif api == "messages":
        anthropic_client.messages.create(max_tokens=9, messages=question, **asked)
        with anthropic_client.messages.stream(max_tokens=9, messages=question, **asked) as stream:
            text = stream.get_final_text()
    else:
        openai_client.responses.create(input=question, store=False, **asked)
        with openai_client.responses.stream(input=question, store=False, **asked) as responses:
            text = responses.get_final_response().output_text
    assert text == WHOLE
    assert gemini.n_received(marker) == 1
    assert gemini.body(marker)["contents"] == [{"role": "user", "parts": [{"text": marker}]}]


@pytest.mark.parametrize(("word", "reason"), [("length", "length"), ("safety", "content_filter"),
                                              ("blocked", "content_filter")])
@pytest.mark.parametrize("streams", [False, True])
def test_finish_reasons(openai_client: openai.OpenAI, word: str, reason: str, streams: bool) -> None:
    """A blocked prompt is an answer without text."""
    if streams:
        chunks = list(openai_client.chat.completions.create(model="g2", messages=ask(f"[{word}]"), stream=True))
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == reason
    else:
        answer = openai_client.chat.completions.create(model="g2", messages=ask(f"[{word}]"))
        assert answer.choices[0].finish_reason == reason


@pytest.mark.parametrize(("word", "final"), [("429", None), ("daily", "false")])
def test_rate_limit_wait_in_the_body_is_retry_after(
        openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, word: str, final: str | None) -> None:
    """In both dialects; an exhausted quota of the day must not be retried."""
    with pytest.raises(openai.RateLimitError) as limited:
        openai_client.chat.completions.create(model="g2", messages=ask(f"[{word}]"))
    assert limited.value.response.headers["retry-after"] == str(RETRY_S)
    assert limited.value.response.headers.get("x-should-retry") == final
    assert "billing" not in limited.value.message
    with pytest.raises(anthropic.RateLimitError) as messages_limited:
        anthropic_client.messages.create(model="g2", max_tokens=9, messages=[{"role": "user", "content": f"[{word}]"}])
    assert messages_limited.value.response.headers["retry-after"] == str(RETRY_S)


def test_overload_and_broken_call_are_errors(openai_client: openai.OpenAI, gemini: GeminiRig) -> None:
    """503 with its wait; a malformed function call is no answer, and retried."""
    with pytest.raises(openai.InternalServerError) as failed:
        openai_client.chat.completions.create(model="g2", messages=ask("[503]"))
    assert (failed.value.status_code, failed.value.response.headers["retry-after"]) == (503, str(RETRY_S))
    with pytest.raises(openai.InternalServerError, match="MALFORMED_FUNCTION_CALL"):
        openai_client.chat.completions.create(model="g2", messages=ask("[broken]"))
    assert gemini.n_received("[broken] twice") == 0
    with pytest.raises(openai.InternalServerError):
        openai_client.chat.completions.create(model="retried", messages=ask("[broken] twice"))
    assert gemini.n_received("[broken] twice") == 2
    with pytest.raises(openai.InternalServerError, match="MALFORMED_FUNCTION_CALL"):
        list(openai_client.chat.completions.create(model="g2", messages=ask("[broken]"), stream=True))


def test_refused_key_is_no_bad_request(openai_client: openai.OpenAI) -> None:
    """Google answers 400; the client can do nothing about it."""
    with pytest.raises(openai.InternalServerError) as failed:
        openai_client.chat.completions.create(model="no-key", messages=ask("Hi"))
    assert (failed.value.status_code, failed.value.code) == (502, "upstream_credentials")


def test_bad_request_keeps_googles_message(openai_client: openai.OpenAI) -> None:
    """A request that Google refuses is refused with its reason."""
    with pytest.raises(openai.BadRequestError, match="end with a user role"):
        openai_client.chat.completions.create(model="g2", messages=[{"role": "assistant", "content": "a"}])
    with pytest.raises(openai.BadRequestError, match="n cannot be translated to gemini"):
        openai_client.chat.completions.create(model="g2", messages=ask("Hi"), n=2)


@pytest.mark.parametrize("word", ["cut", "truncated", "error"])
def test_broken_stream_is_an_error_not_a_completion(
        openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic, word: str) -> None:
    """The connection ends, the body ends without a finish reason, or an error event comes."""
    chunks: list[ChatCompletionChunk] = []
    stream_of_chat = openai_client.chat.completions.create(model="g2", messages=ask(f"[{word}]"), stream=True)
    with pytest.raises(openai.APIError):
        chunks.extend(stream_of_chat)
    assert chunks
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
    with pytest.raises(anthropic.APIError), anthropic_client.messages.stream(
            model="g2", max_tokens=9, messages=[{"role": "user", "content": f"[{word}]"}]) as stream:
        stream.until_done()


def test_embeddings(openai_client: openai.OpenAI) -> None:
    """The SDK requests base64 unless told otherwise."""
    answer = openai_client.embeddings.create(model="g2", input=["one", "three"], dimensions=3)
    assert [item.embedding for item in answer.data] == [[3.0, 0.5, 0.5], [5.0, 0.5, 0.5]]
    plain = openai_client.embeddings.create(model="g2", input="one", encoding_format="float")
    assert plain.data[0].embedding == [3.0, 0.5]
    assert plain.usage.prompt_tokens > 0


def test_client_that_leaves_closes_the_call(gateway: Gateway, gemini: GeminiRig) -> None:
    """After two pieces of a stream that goes on forever."""
    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=gateway.openai_url, api_key="sk-client", max_retries=0) as client:
            stream = await client.chat.completions.create(model="g2", messages=ask("[hang] leaver"), stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in _first(stream, 3)]
            assert "".join(pieces) == "".join(PIECES[:2])
            await stream.close()

    asyncio.run(leave())
    assert gemini.wait_left("leaver")


async def _first(stream: Any, n: int) -> Any:
    """The first `n` chunks: the role, and pieces."""
    for _ in range(n):
        yield await anext(aiter(stream))
