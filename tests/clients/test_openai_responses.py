"""OpenAI's SDK for Python, responses, through the gateway to each upstream dialect."""

import json
from typing import cast

import openai
import pytest
from openai.types.responses import Response, ResponseInputParam, ToolChoiceFunctionParam

from tests.clients.asks import OSLO, PARIS, RESPONSES_TOOL, TOOL_ANSWERS, TOOL_NAME, WHOLE_TEXT, Weather, prompt
from tests.clients.gateway import UPSTREAM_MODEL
from tests.clients.script import N_CACHED_TOKENS, N_INPUT_TOKENS, N_OUTPUT_TOKENS, THOUGHT
from tests.clients.upstream import Upstream

pytestmark = pytest.mark.sockets


def _check_whole(answer: Response) -> None:
    assert (answer.object, answer.status, answer.error) == ("response", "completed", None)
    assert answer.output_text == WHOLE_TEXT
    message = answer.output[0]
    assert message.type == "message"
    assert (message.role, message.status) == ("assistant", "completed")
    usage = answer.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (N_INPUT_TOKENS, N_OUTPUT_TOKENS)
    assert usage.total_tokens == N_INPUT_TOKENS + N_OUTPUT_TOKENS
    assert usage.input_tokens_details.cached_tokens == N_CACHED_TOKENS


def _calls(answer: Response) -> list[tuple[str, str, object]]:
    assert answer.status == "completed"
    calls = [item for item in answer.output if item.type == "function_call"]
    return [(call.call_id, call.name, json.loads(call.arguments)) for call in calls]


def test_plain(openai_client: openai.OpenAI, upstream: Upstream, model: str, marker: str) -> None:
    """A whole answer: its text, its status and its usage; the upstream sees its own model name, and the instructions."""
    _check_whole(openai_client.responses.create(model=model, instructions="Be brief.", input=prompt(marker)))
    seen = upstream.wait_for(marker)
    assert seen.body["model"] == UPSTREAM_MODEL
    assert "Be brief." in seen.text


def test_stream(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """The full sequence of events, numbered without a gap; the last one holds the whole answer."""
    events = list(openai_client.responses.create(model=model, input=prompt(marker), stream=True))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == WHOLE_TEXT
    assert events[-1].type == "response.completed"
    _check_whole(events[-1].response)


def test_stream_accumulated(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """The SDK's own accumulator, which checks every index and id, makes a whole answer of the stream."""
    with openai_client.responses.stream(model=model, input=prompt(marker)) as stream:
        _check_whole(stream.get_final_response())


def test_length(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """An answer cut by the limit on tokens is incomplete and says why, whole and streamed."""
    ask = prompt(marker, "length")
    whole = openai_client.responses.create(model=model, input=ask, max_output_tokens=7)
    last = list(openai_client.responses.create(model=model, input=ask, max_output_tokens=7, stream=True))[-1]
    assert last.type == "response.incomplete"
    for answer in (whole, last.response):
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"


def test_tool_call(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """A tool call comes with its id, its name and arguments that are JSON, and no text."""
    answer = openai_client.responses.create(model=model, input=prompt(marker), tools=[RESPONSES_TOOL])
    assert [item.type for item in answer.output] == ["function_call"]
    assert _calls(answer) == [("call_paris", TOOL_NAME, PARIS)]


def test_text_before_a_tool_call(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """A model that says something before it calls a tool is heard, whole and streamed; the tool may be named."""
    ask = prompt(marker, "text_and_tool")
    choice: ToolChoiceFunctionParam = {"type": "function", "name": TOOL_NAME}
    whole = openai_client.responses.create(model=model, input=ask, tools=[RESPONSES_TOOL], tool_choice=choice)
    with openai_client.responses.stream(model=model, input=ask, tools=[RESPONSES_TOOL], tool_choice=choice) as stream:
        streamed = stream.get_final_response()
    for answer in (whole, streamed):
        assert [item.type for item in answer.output] == ["message", "function_call"]
        assert answer.output_text == "".join(THOUGHT)
        assert _calls(answer) == [("call_paris", TOOL_NAME, PARIS)]


def test_streamed_tool_calls(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """Two calls, their arguments in fragments, come apart again in the SDK's accumulator."""
    asked = openai_client.responses.stream(model=model, input=prompt(marker, "two_tools"), tools=[RESPONSES_TOOL])
    with asked as stream:
        done = [json.loads(event.arguments) for event in stream
                if event.type == "response.function_call_arguments.done"]
        final = stream.get_final_response()
    assert done == [PARIS, OSLO]
    assert _calls(final) == [("call_paris", TOOL_NAME, PARIS), ("call_oslo", TOOL_NAME, OSLO)]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_tool_round_trip(openai_client: openai.OpenAI, model: str, marker: str, streams: bool) -> None:
    """The results of two calls, sent back with the calls themselves, reach the model and are answered in text."""
    ask = prompt(marker, "two_tools")
    asked = openai_client.responses.create(model=model, input=ask, tools=[RESPONSES_TOOL])
    items: ResponseInputParam = [{"role": "user", "content": ask}]
    items += cast("ResponseInputParam", [item.to_dict() for item in asked.output])
    for (call_id, _, _), answer in zip(_calls(asked), TOOL_ANSWERS, strict=True):
        items.append({"type": "function_call_output", "call_id": call_id, "output": answer})
    if streams:
        with openai_client.responses.stream(model=model, input=items, tools=[RESPONSES_TOOL]) as stream:
            text = stream.get_final_response().output_text
    else:
        text = openai_client.responses.create(model=model, input=items, tools=[RESPONSES_TOOL]).output_text
    assert text == f"The tools said: {TOOL_ANSWERS[0]} and {TOOL_ANSWERS[1]}."


def test_json_output(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """A JSON schema, given as a class, is answered by an object of it, whole and streamed."""
    whole = openai_client.responses.parse(model=model, input=prompt(marker), text_format=Weather)
    with openai_client.responses.stream(model=model, input=prompt(marker), text_format=Weather) as stream:
        streamed = stream.get_final_response()
    assert whole.output_parsed == streamed.output_parsed == Weather(city="Paris", degrees=21)


def test_input_tokens_are_counted(openai_client: openai.OpenAI, model: str, marker: str) -> None:
    """In the shape of OpenAI, whatever the upstream speaks; longer input has more. How many depends on the scripted usage
    that the gateway has seen in other tests.
    """
    short = openai_client.responses.input_tokens.count(model=model, input=prompt(marker))
    long = openai_client.responses.input_tokens.count(model=model, input=prompt(marker) * 200, instructions="Be brief.")
    assert short.object == "response.input_tokens"
    assert 0 < short.input_tokens < long.input_tokens


def test_input_tokens_of_a_stored_conversation_are_refused(openai_client: openai.OpenAI, model: str) -> None:
    """Only the provider knows its length; an unknown model is not found, as elsewhere."""
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.responses.input_tokens.count(model=model, input="a", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.input_tokens.count(model="none", input="a")


def test_tokenize_has_the_shape_of_vllm(openai_client: openai.OpenAI, model: str) -> None:
    """A text and a conversation; without a vocabulary there are no ids, and the count is marked."""
    url = str(openai_client.base_url).replace("/v1/", "/tokenize")
    for fields in ({"prompt": "a b c"}, {"messages": [{"role": "user", "content": "a b c"}]}):
        answer = cast("dict[str, object]", openai_client.post(url, cast_to=object, body={"model": model, **fields}))
        assert answer.keys() == {"count", "max_model_len", "tokens", "token_strs", "stayfast_estimated"}
        assert answer["tokens"] == []
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.post(url, cast_to=object, body={"model": model})
    assert refused.value.param == "prompt"
