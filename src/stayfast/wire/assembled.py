"""Whether a whole answer may be fetched as a stream and put together here, so that a part of it is there when time is up.

Only where that changes nothing but when it comes. Providers refuse some of what is left out here when it is to be streamed
(`best_of`), give it another form (audio), or end it by other rules (background responses); of several choices each ends by
itself, which a compatible server may not say of all of them.
"""

from typing import Final

import msgspec
from msgspec import Raw

from stayfast.core.types import Api, Request

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_UNSET: Final = (b"", b"null", b"false", b"1")
_NEVER: Final = {
    Api.CHAT: ("audio",), Api.COMPLETIONS: ("best_of", "echo"), Api.RESPONSES: ("background",), Api.MESSAGES: ()}


def can_assemble(request: Request) -> bool:
    """Whether the answer to this request, which asks for a whole one, is the same when it is fetched as a stream."""
    never = _NEVER.get(request.api)
    if never is None or request.n_choices != 1:
        return False
    members = _OBJECT.decode(request.body)
    return all(bytes(members.get(name, b"")) in _UNSET for name in never) and b'"audio"' not in bytes(
        members.get("modalities", b""))
