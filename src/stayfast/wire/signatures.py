"""Thought signatures of Gemini in the other dialects.

Gemini signs the parts of an answer: the first function call of a step, or the last text. It rejects a later request with a
function call whose signature is missing or changed. Each client dialect has one place that official SDKs send back
unchanged:

    messages     the signature of a thinking block before the call (at the end, if it signs the text)
    responses    the `encrypted_content` of a reasoning item before the call
    chat         `extra_content.google.thought_signature` of the tool call (of the message, if it signs the text), as in
                 Google's own OpenAI endpoint

Other providers sign as well, and reject foreign signatures. In the first two places a signature therefore has a prefix that
no base64 text has. When wrong: within one route, an upstream of the client's own dialect gets the block verbatim, and may
reject it.
"""

from typing import Final

from msgspec import Struct

_PREFIX: Final = "gemini:"
NO_SIGNATURE: Final = "skip_thought_signature_validator"  # Google's documented value for a call that Gemini did not make


class GoogleContent(Struct, gc=False):
    thought_signature: str | None = None


class ExtraContent(Struct, gc=False):
    """`extra_content` of a chat message or tool call."""

    google: GoogleContent | None = None


def read_extra_content(extra: ExtraContent | None) -> str | None:
    """The signature in `extra_content`; None: there is none."""
    return extra.google.thought_signature or None if extra is not None and extra.google is not None else None


def encode_extra_content(signature: str) -> dict[str, dict[str, str]]:
    return {"google": {"thought_signature": signature}}


def mark_signature(signature: str) -> str:
    """The signature with the prefix."""
    return _PREFIX + signature


def read_marked_signature(text: str | None) -> str | None:
    """Gemini's signature in a marked one; None: another provider's, or none."""
    return text.removeprefix(_PREFIX) or None if text is not None and text.startswith(_PREFIX) else None
