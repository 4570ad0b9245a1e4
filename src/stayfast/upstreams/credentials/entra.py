"""Tokens of Microsoft Entra, by azure-identity (extra `azure`). Imported only if configured."""

from collections.abc import Callable
from typing import Any, NamedTuple

from azure.core.credentials import TokenCredential
from azure.identity import (
    ClientSecretCredential,
    DefaultAzureCredential,
    ManagedIdentityCredential,
    WorkloadIdentityCredential,
)

from stayfast.upstreams.credentials.fetching import HTTP_S, silence_logger
from stayfast.upstreams.credentials.renewed import IssuedCredential


class EntraIdentity(NamedTuple):
    """Which identity to use. With a client secret or a token file an application's; else, by `is_managed`, the machine's or
    the first that azure-identity finds.
    """

    scope: str
    authority: str
    tenant_id: str = ""
    client_id: str = ""
    client_secret: str = ""
    token_file: str = ""
    is_managed: bool = False

    def __repr__(self) -> str:
        return f"<EntraIdentity {self.client_id}>"


def make_fetch(identity: EntraIdentity) -> Callable[[], IssuedCredential[str]]:
    """A function that fetches a token, and blocks."""
    silence_logger("azure")
    silence_logger("msal")

    def fetch() -> IssuedCredential[str]:
        # a new object each time: one that lives returns its cached token until five minutes before the end
        with _open_credential(identity) as credential:
            token = credential.get_token(identity.scope)
        return IssuedCredential(token.token, float(token.expires_on))

    return fetch


def _open_credential(identity: EntraIdentity) -> Any:
    http: dict[str, Any] = {"connection_timeout": HTTP_S, "read_timeout": HTTP_S, "retry_total": 1}
    of_app: dict[str, Any] = {"authority": identity.authority, "disable_instance_discovery": True, **http}
    credential: TokenCredential
    if identity.client_secret:
        credential = ClientSecretCredential(identity.tenant_id, identity.client_id, identity.client_secret, **of_app)
    elif identity.token_file:
        credential = WorkloadIdentityCredential(tenant_id=identity.tenant_id, client_id=identity.client_id,
                                                token_file_path=identity.token_file, **of_app)
    elif identity.is_managed:
        credential = ManagedIdentityCredential(client_id=identity.client_id or None, **http)
    else:
        credential = DefaultAzureCredential(managed_identity_client_id=identity.client_id or None,
                                            authority=identity.authority, **http)
    return credential
