"""lab.simulated: its answers have the shapes of their dialects, checked by the readers of real answers."""

import base64
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.core.types import COUNT_APIS, Api
from stayfast.lab.load.lengths import FillerText
from stayfast.lab.simulated import GapConfig, Provider, ProviderConfig, to_simulated_request
from stayfast.lab.simulated.filler_text import make_json, make_words, word_bytes
from stayfast.lab.simulated.prompt_cache import CacheRules
from stayfast.testing import run
from stayfast.wire.request_body import decode
from stayfast.wire.transcode import make_transcoder
from tests.unit.upstreams.simulated_rig import BODIES, Heard, hear, request

SCHEMA = {
    "type": "object", "required": ["city", "days", "unit", "tags", "where"],
    "$defs": {"P": {"type": "object", "properties": {"lat": {"type": "number"}}}},
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer", "minimum": 3}, "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "where": {"$ref": "#/$defs/P"},
        "not_required": {"type": "string"}},
}
FITS = {"days": 3, "unit": "C", "tags": [True, True], "where": {"lat": 1}}


def heard(api: Api, **fields: Any) -> Heard:
    """The answer of a provider without latency."""
    config = ProviderConfig(gaps=GapConfig(0.0, 0.0, tokens_per_chunk=3))
    return run(lambda loop: hear(Provider("p", config, loop), to_simulated_request(request(api, **fields))))


@pytest.mark.parametrize("api", BODIES)
@pytest.mark.parametrize("stream", [True, False])
def test_simulated_answers_are_complete_in_every_protocol(api: Api, stream: bool) -> None:
    """The readers that judge real upstreams find the answer complete, with its usage, streamed or not."""
    stream = stream and api.can_stream
    limit = {"max_tokens": 20} if api in (Api.CHAT, Api.COMPLETIONS, Api.MESSAGES) else {}
    usage = {"stream_options": {"include_usage": True}} if stream and api in (Api.CHAT, Api.COMPLETIONS) else {}
    asked = request(api, stream=stream, **limit, **usage)
    reader = make_transcoder(api, asked, source_streams=stream, upstream="p")
    reader.feed(heard(api, stream=stream, **limit, **usage).body)
    reader.finish()
    assert reader.summary.failure is None
    assert reader.summary.is_complete
    if api not in COUNT_APIS:
        assert reader.summary.usage is not None
        assert reader.summary.usage.input_total > 0
    if limit:
        assert reader.summary.usage is not None
        assert reader.summary.usage.output == 20
        assert reader.summary.finish_reason in ("length", "max_tokens")


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES])
def test_simulated_stream_and_whole_answer_are_equal(api: Api) -> None:
    """Folding a stream gives the whole answer of the same dice, but for the instant in it."""
    whole = make_transcoder(api, request(api), source_streams=True, upstream="p")
    whole.feed(heard(api, stream=True).body)
    folded = whole.finish()
    assert folded is not None
    streamed, plain = msgspec.json.decode(folded.data), msgspec.json.decode(heard(api).body)
    for body in (streamed, plain):
        body.pop("usage", None)
    if api is Api.CHAT:
        assert plain["choices"][0]["message"].pop("annotations") == []  # which streams do not say
    assert streamed == plain


def test_simulated_chat_has_openai_fields() -> None:
    """Every chunk carries what OpenAI's carry; with usage asked for, all but the last say null."""
    body = heard(Api.CHAT, stream=True, max_tokens=9, stream_options={"include_usage": True}).body
    chunks = [msgspec.json.decode(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")]
    assert {chunk["system_fingerprint"] for chunk in chunks} == {"fp_simulated"}
    assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    usage = chunks[-1]["usage"]
    assert usage["prompt_tokens_details"].keys() == {
        "cached_tokens", "cache_write_tokens", "audio_tokens", "image_tokens", "text_tokens"}
    assert usage["completion_tokens_details"].keys() == {
        "reasoning_tokens", "audio_tokens", "text_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_simulated_chat_several_choices(stream: bool) -> None:
    """Each has its own index and end; usage counts all."""
    asked = request(Api.CHAT, stream=stream, n=3, max_tokens=5, stream_options={"include_usage": stream})
    reader = make_transcoder(Api.CHAT, asked, source_streams=stream, upstream="p")
    reader.feed(heard(Api.CHAT, stream=stream, n=3, max_tokens=5, stream_options={"include_usage": stream}).body)
    reader.finish()
    assert reader.summary.is_complete
    assert reader.summary.usage is not None
    assert reader.summary.usage.output == 15


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
def test_simulated_chat_choices_differ(api: Api, stream: bool) -> None:
    """As samples do; a stream and a whole answer of the same dice have the same three."""
    body = heard(api, stream=stream, n=3, max_tokens=12).body
    texts = ["", "", ""]
    for line in body.split(b"\n\n") if stream else [b"data: " + body]:
        if line.startswith(b"data: {"):
            for choice in msgspec.json.decode(line[6:])["choices"]:
                said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
                texts[choice["index"]] += said.get("content") or ""
    assert [len(text.split()) for text in texts] == [12, 12, 12]
    assert len(set(texts)) == 3


def test_simulated_message_has_anthropic_fields() -> None:
    """A ping between the start and the first content; usage with all its counts and the tier."""
    body = heard(Api.MESSAGES, stream=True).body
    names = [line[7:] for line in body.decode().split("\n") if line.startswith("event: ")]
    assert names[:4] == ["message_start", "content_block_start", "ping", "content_block_delta"]
    assert names.count("ping") == 1
    usage = msgspec.json.decode(heard(Api.MESSAGES).body)["usage"]
    assert usage["service_tier"] == "standard"
    assert usage.keys() == {
        "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation",
        "output_tokens_details", "server_tool_use", "service_tier", "speed", "inference_geo"}


@pytest.mark.parametrize("stream", [True, False])
def test_simulated_response_echoes_request(stream: bool) -> None:
    """Tools, the choice among them and the rest of the request stand in every form of the response."""
    asked = {**TOOLS[Api.RESPONSES], "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5,
             "max_output_tokens": 1000}
    body = heard(Api.RESPONSES, stream=stream, **asked).body
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")] if stream else [body]
    found = [said.get("response") or said for said in map(msgspec.json.decode, lines)
             if not stream or "response" in said]
    assert len(found) == (3 if stream else 1)
    for response in found:
        assert {name: response[name] for name in asked} == asked
        assert response["service_tier"] == "default"


@pytest.mark.parametrize("stream", [True, False])
def test_simulated_incomplete_response_has_incomplete_item(stream: bool) -> None:
    """Cut at its limit, the message is no more complete than the response."""
    body = heard(Api.RESPONSES, stream=stream, max_output_tokens=7).body
    if stream:
        done, last = [msgspec.json.decode(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")][-2:]
        assert (done["type"], done["item"]["status"]) == ("response.output_item.done", "incomplete")
        response = last["response"]
    else:
        response = msgspec.json.decode(body)
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")


FUNCTION = {"name": "weather", "parameters": SCHEMA}
TOOLS: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    Api.RESPONSES: {"tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": "weather"}},
    Api.MESSAGES: {"tools": [{"name": "other", "input_schema": {}}, {"name": "weather", "input_schema": SCHEMA}],
                   "tool_choice": {"type": "tool", "name": "weather"}},
}


@pytest.mark.parametrize("api", TOOLS)
@pytest.mark.parametrize("stream", [True, False])
def test_simulated_forced_tool_call_has_valid_arguments(api: Api, stream: bool) -> None:
    """The call names the tool, and its arguments fit the tool's schema, in each dialect."""
    body = heard(api, stream=stream, **TOOLS[api]).body
    if stream:
        whole = make_transcoder(api, request(api, **TOOLS[api]), source_streams=True, upstream="p")
        whole.feed(body)
        folded = whole.finish()
        assert folded is not None
        body = folded.data
    said = msgspec.json.decode(body)
    match api:
        case Api.CHAT:
            call = said["choices"][0]["message"]["tool_calls"][0]["function"]
            reason, name = said["choices"][0]["finish_reason"], call["name"]
            arguments = msgspec.json.decode(call["arguments"])
        case Api.RESPONSES:
            call = said["output"][0]
            reason, name, arguments = "tool_calls", call["name"], msgspec.json.decode(call["arguments"])
        case _:
            reason, name, arguments = said["stop_reason"], said["content"][0]["name"], said["content"][0]["input"]
    assert (reason, name) in (("tool_calls", "weather"), ("tool_use", "weather"))
    assert FITS.items() <= arguments.items()


@pytest.mark.parametrize(("api", "fields"), [
    (Api.CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
    (Api.RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}),
    (Api.MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    (Api.CHAT, {"response_format": {"type": "json_object"}}),
])
def test_simulated_json_mode_returns_json(api: Api, fields: dict[str, Any]) -> None:
    """An object that fits the schema, or any object where there is none."""
    said = msgspec.json.decode(heard(api, **fields).body)
    match api:
        case Api.CHAT:
            text = said["choices"][0]["message"]["content"]
        case Api.RESPONSES:
            text = said["output"][0]["content"][0]["text"]
        case _:
            text = said["content"][0]["text"]
    value = msgspec.json.decode(text)
    if fields.get("response_format") == {"type": "json_object"}:
        assert value.keys() == {"answer"}
    else:
        assert FITS.items() <= value.items()


def test_simulated_embeddings_depend_on_text_only() -> None:
    """The same text, the same vector, about as long as 1, in either encoding; tokens count as inputs too."""
    said = msgspec.json.decode(heard(Api.EMBEDDINGS, input=["a", "b", "a"]).body)
    vectors = [item["embedding"] for item in said["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    assert len(vectors[0]) == 1536
    assert sum(x * x for x in vectors[0]) == pytest.approx(1, abs=0.15)
    encoded = msgspec.json.decode(heard(Api.EMBEDDINGS, input="a", encoding_format="base64", dimensions=1536).body)
    assert struct.unpack("1536f", base64.b64decode(encoded["data"][0]["embedding"])) == pytest.approx(vectors[0], abs=1e-6)
    assert len(msgspec.json.decode(heard(Api.EMBEDDINGS, input=[[1, 2], [3]], dimensions=8).body)["data"]) == 2
    assert len(msgspec.json.decode(heard(Api.EMBEDDINGS, input=[1, 2, 3]).body)["data"]) == 1


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES])
@pytest.mark.parametrize("n_words", [4, 40, 2000])
def test_simulated_word_prompts_count_one_token_a_word(api: Api, n_words: int) -> None:
    """The bench's words, of which it makes prompts of known lengths, count one each: traces replay with their lengths."""
    text = FillerText(3).make_prompt(11, n_words)
    fields: dict[Api, dict[str, Any]] = {Api.COMPLETIONS: {"prompt": text}, Api.RESPONSES: {"input": text}}
    said = fields.get(api) or {"messages": [{"role": "user", "content": text}]}
    assert to_simulated_request(request(api, **said)).n_prompt_tokens == pytest.approx(n_words, rel=0.02)


@pytest.mark.parametrize(("said", "n_tokens"), [
    ("", 0), ("x" * 4000, 999), ("of a b", 3), ([{"type": "text", "text": "two words"}], 2),
    ([{"type": "image_url", "image_url": {"url": "data:" + "A" * 9000}}], 1600), ("ж" * 400, 199),
])
def test_simulated_other_prompts_count_by_bytes(said: Any, n_tokens: int) -> None:
    """What is no plain words counts four bytes a token; a picture has a price of its own."""
    assert to_simulated_request(request(Api.CHAT, messages=[{"role": "user", "content": said}])).n_prompt_tokens == n_tokens


def test_simulated_options_are_read_from_body() -> None:
    """Prompt tokens, a session from `user`, an exact length from `ignore_eos`."""
    said = [{"role": "user", "content": "x" * 4000}]
    ask = to_simulated_request(request(Api.CHAT, messages=said, user="u", max_tokens=7, ignore_eos=True))
    assert ask.n_prompt_tokens == pytest.approx(1000, abs=15)
    assert (ask.session, ask.n_output, ask.max_output_tokens) == ("u", 7, 7)
    assert to_simulated_request(request(Api.MESSAGES, metadata={"user_id": "v"})).session == "v"
    assert to_simulated_request(request(Api.CHAT), model="there", number=5, session="s") == to_simulated_request(
        request(Api.CHAT, model="there", user="s"), number=5)


WORDS = st.sampled_from(["type", "properties", "items", "required", "enum", "anyOf", "$ref", "minItems", "minimum", "a"])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text() | WORDS,
                    lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner)))
def test_simulated_any_json_schema_gets_valid_json(schema: Any) -> None:
    """However wild a schema is, the answer is JSON."""
    msgspec.json.decode(make_json(schema if isinstance(schema, dict) else None, 0))


def test_simulated_text_repeats_its_words() -> None:
    """Words need no escape, and the passage begins anew at its end."""
    assert make_words(0, 3) == "Average latency is "
    assert make_words(5, 1000).split() == (make_words(5, 400) + make_words(405, 600)).split()
    assert msgspec.json.encode(make_words(0, 300)) == b'"' + word_bytes(0, 300) + b'"'


@pytest.mark.parametrize("rules", [None, "anthropic"])
def test_simulated_huge_number_is_refused(rules: CacheRules | None) -> None:
    """In a field that is not known to the gateway, but read here."""
    content = b'[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":1e999}}]'
    body = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":%b}]}' % content
    with pytest.raises(Rejected, match="number out of range"):
        to_simulated_request(decode(Api.MESSAGES, body), cache_rules=rules)
