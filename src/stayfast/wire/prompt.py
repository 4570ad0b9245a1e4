"""What of a request's body says where it had better go: the prompt as an engine reads it, and whose conversation it is."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

_ABSENT: Final = Raw(b"")


class _Whose(Struct, gc=False):
    """The fields that matter, of all dialects, unread."""

    session_id: Raw = _ABSENT  # vLLM, SGLang
    conversation: Raw = _ABSENT
    prompt_cache_key: Raw = _ABSENT
    metadata: Raw = _ABSENT
    safety_identifier: Raw = _ABSENT
    user: Raw = _ABSENT
    previous_response_id: Raw = _ABSENT


class _Body(_Whose, gc=False):
    tools: Raw = _ABSENT
    system: Raw = _ABSENT
    instructions: Raw = _ABSENT
    messages: Raw = _ABSENT
    prompt: Raw = _ABSENT
    input: Raw = _ABSENT


_WHOSE: Final = msgspec.json.Decoder(_Whose)
_BODY: Final = msgspec.json.Decoder(_Body)
_ANY: Final = msgspec.json.Decoder()


class Asked(Struct, frozen=True, gc=False):
    """`prompt`: as JSON, in the order in which engines read it. `session`: what names the conversation, else its user;
    empty where nothing does. `previous`: the response that this one goes on from."""

    prompt: bytes
    session: bytes
    previous: str


_NOBODY: Final = _Whose()
_NOTHING: Final = Asked(b"", b"", "")


def asked(body: bytes) -> Asked:
    """What a body that `wire.decode` has accepted says."""
    said = _BODY.decode(body)
    prompt = b"".join((said.tools, said.system, said.instructions, said.messages, said.prompt, said.input))
    return Asked(prompt, _session(said), _previous(said))


def asked_by(body: bytes) -> Asked:
    """The same without its prompt, which is left empty."""
    said = _WHOSE.decode(body)
    if said == _NOBODY:
        return _NOTHING
    return Asked(b"", _session(said), _previous(said))


def _previous(said: _Whose) -> str:
    previous = _ANY.decode(said.previous_response_id) if said.previous_response_id is not _ABSENT else None
    return previous if isinstance(previous, str) else ""


def _session(said: _Whose) -> bytes:
    for raw in (said.session_id, said.conversation, said.prompt_cache_key):
        if raw is not _ABSENT and _is_said(raw):
            return bytes(raw)
    if said.metadata is not _ABSENT:
        metadata: Any = _ANY.decode(said.metadata)
        user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
        if isinstance(user_id, str) and user_id:
            return user_id.encode(errors="surrogatepass")
    for raw in (said.safety_identifier, said.user):
        if raw is not _ABSENT and _is_said(raw):
            return bytes(raw)
    return b""


def _is_said(raw: Raw) -> bool:
    return bytes(raw) not in (b"null", b'""')
