"""Facts about credentials that expire, emitted like those of `core.events`."""

import msgspec


class CredentialRenewed(msgspec.Struct, frozen=True, gc=False):
    """The credential of an upstream was renewed. kind: entra, google, aws. left_s: its life, None: it has no end."""

    upstream: str
    kind: str
    left_s: int | None


class CredentialRenewalFailed(msgspec.Struct, frozen=True, gc=False):
    """A renewal failed; the old credential stays in force until its end. why: in words, without secrets."""

    upstream: str
    kind: str
    why: str
    n_failed: int  # in a row
    left_s: int | None  # of the old one; 0: there is none, None: it has no end
