"""Certificates for listeners of tests."""

import ssl
from pathlib import Path

import trustme

from stayfast.server.config import TlsConfig


class Authority:
    """A certificate authority and the files it writes into a folder."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.folder = trustme.CA(), folder
        self.ca_file = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.write_certificate()

    def write_certificate(self) -> TlsConfig:
        issued = self.ca.issue_cert("127.0.0.1")
        chain, key = self.folder / "chain.pem", self.folder / "key.pem"
        chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return TlsConfig(str(chain), str(key))

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_file)
