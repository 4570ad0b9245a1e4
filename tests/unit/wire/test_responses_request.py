"""Translation of responses requests to the normal form and back."""



from stayfast.core.types import Api
from tests.unit.wire.full_requests import sent, user


def test_responses_request_translated_is_not_stored() -> None:
    """Only a client of the responses API can ask its provider to store an answer."""
    assert sent(Api.CHAT, Api.RESPONSES)["store"] is False


def test_responses_request_input_text_becomes_one_user_message() -> None:
    """The short form of `input` and the list form translate to the same messages."""
    assert sent(Api.RESPONSES, Api.CHAT, input="hi")["messages"] == [{"role": "user", "content": "hi"}]
    assert sent(Api.RESPONSES, Api.CHAT, input=user({"type": "input_text", "text": "hi"}))["messages"] == [
        {"role": "user", "content": "hi"}]


def test_responses_request_reasoning_items_are_dropped() -> None:
    """Only their own provider can read them."""
    items = [{"role": "user", "content": "hi"}, {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}]
    assert sent(Api.RESPONSES, Api.CHAT, input=items)["messages"] == [{"role": "user", "content": "hi"}]


def test_responses_request_assistant_text_is_one_string() -> None:
    """Output parts would need ids and annotations."""
    question = user({"type": "text", "text": "a"})
    messages = [*question, {"role": "assistant", "content": "b"}, *question]
    assert sent(Api.CHAT, Api.RESPONSES, messages=messages)["input"][1] == {
        "type": "message", "role": "assistant", "content": "b"}
