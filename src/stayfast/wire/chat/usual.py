"""The shape that nearly every whole chat answer has, read without making what nobody looks at.

An answer that does not fit says nothing here, and is read the long way (`source.see_whole`). So a field that means
something and is not read here must be of a type that it does not fit.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from stayfast.core.types import Usage

_Count = Annotated[int, Meta(ge=0, lt=2**53)]  # what a JSON number can say exactly


class _Inputs(Struct, gc=False):
    cached_tokens: _Count | None = None
    cache_write_tokens: None = None


class _Outputs(Struct, gc=False):
    reasoning_tokens: _Count | None = None


class _Said(Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count
    prompt_tokens_details: _Inputs | None = None
    completion_tokens_details: _Outputs | None = None
    prompt_cache_hit_tokens: None = None
    input_tokens_details: None = None
    output_tokens_details: None = None


class _Message(Struct, gc=False):
    content: Raw = Raw()
    tool_calls: Raw = Raw()
    function_call: None = None
    refusal: None = None


class _Choice(Struct, gc=False):
    message: _Message
    finish_reason: str | None = None


class Answer(Struct, gc=False):
    """What is looked at of a whole chat answer."""

    id: str
    choices: list[_Choice]
    usage: _Said | None = None
    error: None = None

    def says_text(self) -> bool:
        """Whether it is plain to see that its one choice says text and nothing else."""
        if len(self.choices) != 1:
            return False
        message = self.choices[0].message
        content, calls = bytes(message.content), message.tool_calls
        return len(content) > 2 and content[0] == _QUOTE and (not len(calls) or bytes(calls) in _NO_CALLS)

    def counted(self) -> Usage | None:
        """Its token counts; None: it has none."""
        said = self.usage
        if said is None:
            return None
        inputs, outputs = said.prompt_tokens_details, said.completion_tokens_details
        return Usage(said.prompt_tokens, said.completion_tokens, (inputs.cached_tokens if inputs is not None else 0) or 0,
                     0, 0, (outputs.reasoning_tokens if outputs is not None else 0) or 0)


_NO_CALLS: Final = (b"null", b"[]")
_QUOTE: Final = 34
_DECODER: Final = msgspec.json.Decoder(Answer)


def usual(body: bytes) -> Answer | None:
    """What the answer says; None where it must be read the long way."""
    if body.find(b"\\u") >= 0:
        return None  # what is passed over is not checked for halves of surrogate pairs
    try:
        if not body.isascii():
            str(body, "utf-8")  # nor for this
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
