"""A whole answer of each API, as its provider sends it."""

from stayfast.core.types import Api
from tests.unit.wire.recorded import CALL_ITEM, CHAT_USAGE, MESSAGE_ITEM, RESPONSES_USAGE, Json, response

CHAT: Json = {
    "id": "chatcmpl-7", "object": "chat.completion", "created": 1766000000, "model": "up-1", "choices": [
        {"index": 0, "logprobs": None, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "Hé", "refusal": None, "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}]}}],
    "usage": CHAT_USAGE}


MESSAGE: Json = {
    "id": "msg_5", "type": "message", "role": "assistant", "model": "up-3", "stop_reason": "stop_sequence",
    "stop_sequence": "END", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, {"type": "text", "text": "Hé"},
        {"type": "tool_use", "id": "toolu_a", "name": "clock", "input": {}}],
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 2, "output_tokens": 6}}


ANSWERS: dict[Api, Json] = {
    Api.CHAT: CHAT,
    Api.COMPLETIONS: {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [
        {"index": 0, "text": "Hé", "logprobs": None, "finish_reason": "stop"}], "usage": CHAT_USAGE},
    Api.RESPONSES: response("completed", [MESSAGE_ITEM, CALL_ITEM], usage=RESPONSES_USAGE),
    Api.MESSAGES: MESSAGE,
    Api.EMBEDDINGS: {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
                     "usage": {"prompt_tokens": 3, "total_tokens": 3}},
    Api.RERANK: {"id": "r", "results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 3}},
    Api.COUNT_TOKENS: {"input_tokens": 12},
    Api.INPUT_TOKENS: {"object": "response.input_tokens", "input_tokens": 12},
    Api.TOKENIZE: {"count": 2, "max_model_len": 4096, "tokens": [9906, 1917]},
}
