"""Items of conversations in the Responses API."""

from msgspec import Raw, json

from stayfast.wire.responses.items import read_input_items, reusable_items


def test_read_input_items_of_a_text_is_one_user_message() -> None:
    """As the API reads it."""
    assert read_input_items(Raw(b'"hi"')) == [{"type": "message", "role": "user", "content": "hi"}]
    assert read_input_items(None) == read_input_items(Raw(b"null")) == []
    assert json.encode(read_input_items(Raw(b'[{"a": 1}]'))) == b'[{"a": 1}]'


def test_reusable_items_drop_ids_and_plain_reasoning() -> None:
    """Another provider has not stored them."""
    output = [{"type": "reasoning", "id": "r"}, {"type": "reasoning", "id": "r2", "encrypted_content": "x"},
              {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": []}, "no item"]
    assert reusable_items(output) == [{"type": "reasoning", "encrypted_content": "x"},
                                      {"type": "message", "role": "assistant", "content": []}]
