"""The service tier in a request's body, in the protocol of the upstream.

    chat, responses   "service_tier": "priority"                messages   "service_tier": "standard_only", "speed": "fast"
    gemini            "serviceTier": "flex"                     converse   "serviceTier": {"type": "flex"}

A word is a provider's own (providers.json). `MEMBER=WORD` names another member of the body than the usual one. The member of
a client wins unless the settings say otherwise. Source: the providers' documentation, as of November 2026. When wrong: the
provider refuses the word with a 400, or ignores it and reports another tier.
"""

from typing import Final

import msgspec
from msgspec import Raw

from stayfast.core.conversation import RawObject
from stayfast.core.types import NEVER_STREAMED, Api

_OBJECT: Final = msgspec.json.Decoder(RawObject)
_ENCODER: Final = msgspec.json.Encoder()
_CAMEL: Final = "serviceTier"
_MEMBERS: Final = {Api.GEMINI: _CAMEL, Api.CONVERSE: _CAMEL}
_OWN: Final = ("service_tier", _CAMEL, "speed", "performanceConfig")  # members by which a client chooses


def write_service_tier(body: bytes, api: Api, word: str, *, replaces: bool) -> bytes:
    """The body with this service tier; the same body for APIs without tiers. replaces: also the client's own choice."""
    if api in NEVER_STREAMED:
        return body
    fields = _OBJECT.decode(body)
    if not replaces and any(bytes(fields.get(name, b"null")) != b"null" for name in _OWN):
        return body
    name, _, value = word.rpartition("=")
    name = name or _MEMBERS.get(api, "service_tier")
    for other in _OWN if replaces else ():
        fields.pop(other, None)
    fields[name] = Raw(_ENCODER.encode({"type": value} if api is Api.CONVERSE and name == _CAMEL else value))
    return _ENCODER.encode(fields)
