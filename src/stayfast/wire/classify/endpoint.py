"""POST /v1/classify: the request, and the answer in the form of vLLM's endpoint of that name.

    {"model": "intent", "input": ["Where is my card?"]}
    {"object": "list", "model": "intent", "data": [{"index": 0, "label": "card_arrival", "probs": [...], "num_classes": 77}]}

vLLM's fields stand as they are: `probs` are in the order of `labels`, which vLLM has not. `label` may be `unknown`; then
`nearest` is the label with the highest probability.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from stayfast.core.errors import Rejected

MAX_INPUTS: Final = 128
MAX_CHARS: Final = 100_000  # of all inputs


class ClassifyRequest(Struct, frozen=True):
    """model: the name of a classifier in the settings. Other fields are ignored, as vLLM ignores them."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: Annotated[str, Meta(min_length=1)] | Annotated[list[Annotated[str, Meta(min_length=1)]],
                                                         Meta(min_length=1, max_length=MAX_INPUTS)]
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class ClassifiedInput(Struct, frozen=True):
    """index: of the input. probs: 0 to 1, by label. probability: that of `nearest`, calibrated."""

    index: int
    label: str
    probs: list[float]
    num_classes: int
    nearest: str
    probability: float


class ClassifyUsage(Struct, frozen=True):
    """vLLM's form. A static table reads no prompt, so there are no tokens to be billed."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int = 0


class ClassifyReply(Struct, frozen=True):
    """created: seconds since 1970. labels: in the order of `probs`."""

    id: str
    object: str
    created: int
    model: str
    labels: tuple[str, ...]
    data: list[ClassifiedInput]
    usage: ClassifyUsage = ClassifyUsage()


_DECODER: Final = msgspec.json.Decoder(ClassifyRequest)


def decode_classify_request(body: bytes) -> ClassifyRequest:
    """Raises Rejected with the field."""
    try:
        request = _DECODER.decode(body)
    except msgspec.ValidationError as wrong:
        message = str(wrong)
        param = "input" if "input" in message else "model"
        raise Rejected(f"The request is malformed: {message}. It needs model, the name of a classifier, and input, a text "
                       f"or a list of 1 to {MAX_INPUTS} texts.", param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise Rejected(f"The body is not JSON: {wrong}.") from None
    n_chars = sum(map(len, request.texts))
    if n_chars > MAX_CHARS:
        raise Rejected(f"The inputs have {n_chars:,} characters, and at most {MAX_CHARS:,} are classified in one request.",
                       status=413, code="input_too_long", param="input")
    return request


def encode_classify_reply(request_id: str, created: int, model: str, labels: Sequence[str],
                          data: list[ClassifiedInput]) -> bytes:
    """created: seconds since 1970."""
    return msgspec.json.encode(ClassifyReply(f"classify-{request_id}", "list", created, model, tuple(labels), data))
