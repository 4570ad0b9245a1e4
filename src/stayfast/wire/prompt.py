"""What of a request's body says where it had better go: the prompt as an engine reads it, and whose conversation it is."""

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

_ABSENT: Final = Raw(b"")


class _Body(Struct, gc=False):
    """The fields that matter, of all dialects, unread."""

    tools: Raw = _ABSENT
    system: Raw = _ABSENT
    instructions: Raw = _ABSENT
    messages: Raw = _ABSENT
    prompt: Raw = _ABSENT
    input: Raw = _ABSENT
    session_id: Raw = _ABSENT  # vLLM, SGLang
    conversation: Raw = _ABSENT
    prompt_cache_key: Raw = _ABSENT
    metadata: Raw = _ABSENT
    safety_identifier: Raw = _ABSENT
    user: Raw = _ABSENT
    previous_response_id: Raw = _ABSENT


_BODY: Final = msgspec.json.Decoder(_Body)
_ANY: Final = msgspec.json.Decoder()


class Asked(NamedTuple):
    """`prompt`: as JSON, in the order in which engines read it. `session`: what names the conversation, else its user;
    empty where nothing does. `previous`: the response that this one goes on from."""

    prompt: bytes
    session: bytes
    previous: str


def asked(body: bytes) -> Asked:
    """What a body that `wire.decode` has accepted says."""
    said = _BODY.decode(body)
    prompt = b"".join((said.tools, said.system, said.instructions, said.messages, said.prompt, said.input))
    previous = _ANY.decode(said.previous_response_id) if said.previous_response_id else None
    return Asked(prompt, _session(said), previous if isinstance(previous, str) else "")


def _session(said: _Body) -> bytes:
    for raw in (said.session_id, said.conversation, said.prompt_cache_key):
        if raw and _is_said(raw):
            return bytes(raw)
    if said.metadata:
        metadata: Any = _ANY.decode(said.metadata)
        user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
        if isinstance(user_id, str) and user_id:
            return user_id.encode(errors="surrogatepass")
    for raw in (said.safety_identifier, said.user):
        if raw and _is_said(raw):
            return bytes(raw)
    return b""


def _is_said(raw: Raw) -> bool:
    return bytes(raw) not in (b"null", b'""')
