"""TLS of a listener."""

import ssl


class ServerCertificate:
    """A certificate and the context that listeners use. A reload affects new connections; open ones keep theirs."""

    __slots__ = ("_cert_file", "_key_file", "context")

    def __init__(self, cert_file: str, key_file: str | None, client_ca_file: str | None, *,
                 is_1_3_only: bool = False) -> None:
        """cert_file: PEM, the chain included. key_file: None: the key is in `cert_file`. client_ca_file: clients need a
        certificate of these authorities. Raises OSError and ssl.SSLError.
        """
        self.context = context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3 if is_1_3_only else ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        self._cert_file, self._key_file = cert_file, key_file
        self.reload()
        if client_ca_file is not None:
            context.load_verify_locations(client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED

    def reload(self) -> None:
        """Read the files again. Raises OSError and ssl.SSLError; the old certificate then stays."""
        self.context.load_cert_chain(self._cert_file, self._key_file, password=_no_password)


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted: store it without a password, readable by the gateway only")
