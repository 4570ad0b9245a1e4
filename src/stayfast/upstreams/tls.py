"""TLS to an upstream: who is trusted, which protocol is offered, and the last session, so that a reconnect skips the
certificates. asyncio and uvloop never pass a session on, so it is put in where both of them create the TLS object.
"""

import ssl
from collections.abc import Sequence


class ResumingContext(ssl.SSLContext):
    """A client's context for one origin that offers `session`, the last one seen there."""

    session: ssl.SSLSession | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool = False,
                 server_hostname: str | bytes | None = None, session: ssl.SSLSession | None = None) -> ssl.SSLObject:
        """As in `ssl.SSLContext`, with the kept session where none is given."""
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session or self.session)


def client_context(ca_file: str | None, *, verify: bool, protocols: Sequence[str]) -> ResumingContext:
    """Trust the system's certificates, or those in `ca_file` only. Reads files; OSError when one cannot be used."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_file is not None:
        context.load_verify_locations(ca_file)
    else:
        context.load_default_certs()
    context.set_alpn_protocols(list(protocols))
    return context
