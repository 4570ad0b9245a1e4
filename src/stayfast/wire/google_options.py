"""Options of Gemini that no other dialect has, in a client's body: `google`, or `extra_body.google`, where Google's own
OpenAI endpoint reads them.
"""

from msgspec import Struct

from stayfast.core.conversation import GoogleOptions, RawObject


class GoogleThinking(Struct, gc=False, omit_defaults=True):
    """`thinking_config`."""

    include_thoughts: bool | None = None
    thinking_budget: int | None = None
    thinking_level: str | None = None


class GoogleMember(Struct, gc=False):
    """`google`. Unknown fields are not checked, and dropped."""

    cached_content: str | None = None
    safety_settings: list[RawObject] | None = None
    thinking_config: GoogleThinking | None = None


class ExtraBody(Struct, gc=False):
    """`extra_body`: the official SDK adds a member of this name if the client writes it twice, as Google documents."""

    google: GoogleMember | None = None


def read_google_options(extra: ExtraBody | None, direct: GoogleMember | None) -> GoogleOptions | None:
    """The options in the normal form; None without any. `direct`: the member `google` of the body."""
    given = extra.google if extra is not None and extra.google is not None else direct
    if given is None:
        return None
    thinking = given.thinking_config or GoogleThinking()
    return GoogleOptions(given.cached_content or None, tuple(given.safety_settings or ()), thinking.include_thoughts,
                         thinking.thinking_budget, thinking.thinking_level)
