"""Embeddings that the gateway computes itself: the texts of a request, and OpenAI's answer.

OpenAI's SDK requests base64 (little-endian 32-bit floats) unless the client chooses.
"""

from array import array
from base64 import b64encode
from collections.abc import Sequence
from sys import byteorder

import msgspec

from stayfast.core.errors import Rejected
from stayfast.core.types import Request
from stayfast.wire.chat.request import EmbeddingsRequest


def read_texts(request: EmbeddingsRequest) -> list[str]:
    """Raises Rejected for token numbers, which are those of another model, and for an empty text."""
    inputs = [request.input] if isinstance(request.input, str) else request.input
    texts = [text for text in inputs if isinstance(text, str)]
    if len(texts) < len(inputs):
        raise Rejected("input: this encoder has its own tokenizer; send text instead of token numbers.",
                       code="unsupported_value", param="input")
    for number, text in enumerate(texts):
        if not text:
            raise Rejected(f"input[{number}] must not be empty.", code="invalid_type", param=f"input[{number}]")
    return texts


def encode_embeddings_answer(request: Request, vectors: Sequence[bytes], n_tokens: int, *, is_base64: bool) -> bytes:
    """vectors: of float32 in the machine's byte order, one for each text."""
    data = [{"object": "embedding", "index": number, "embedding": _to_base64(row) if is_base64 else list(array("f", row))}
            for number, row in enumerate(vectors)]
    return msgspec.json.encode({"object": "list", "model": request.model, "data": data,
                                "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens}})


def _to_base64(row: bytes) -> str:
    values = array("f", row)
    if byteorder == "big":
        values.byteswap()
    return b64encode(values.tobytes()).decode()
