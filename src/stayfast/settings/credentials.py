"""Settings of credentials that expire (docs/credentials.md)."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from re import fullmatch
from typing import Annotated, Literal

from stayfast.core.setting import Secret, SettingDoc, check_bounds

ENTRA_SCOPE = "https://cognitiveservices.azure.com/.default"
GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SCOPE = SettingDoc("Scope of the token.", pattern=r"[!-~]+", form="a scope, without spaces")
_ID = r"|[A-Za-z0-9._-]{1,100}"
_ID_FORM = "letters, digits and . _ -"
_FILE = r"|[^\x00\n]{1,4096}"


@dataclass(frozen=True, slots=True)
class EntraCredentials:
    """Microsoft Entra: an application with a secret or a token file, else what azure-identity finds."""

    kind: Annotated[Literal["entra"], SettingDoc(
        "Tokens of Microsoft Entra, for Azure; needs pip install '.[azure]' in Stayfast's checkout.")] = "entra"
    tenant_id: Annotated[str, SettingDoc("The directory's id or domain.", pattern=_ID, form=_ID_FORM)] = ""
    client_id: Annotated[str, SettingDoc(
        "The application's id; of a managed identity, that of a user-assigned one.", pattern=_ID, form=_ID_FORM)] = ""
    client_secret: Annotated[Secret | None, SettingDoc(
        "The application's secret, as a reference: ${AZURE_CLIENT_SECRET}.")] = None
    token_file: Annotated[str, SettingDoc(
        "File with the federated token of workload identity, read at each renewal.", pattern=_FILE, form="a path")] = ""
    managed: Annotated[bool, SettingDoc(
        "Use the machine's managed identity only. false: without client_secret and token_file, the first of environment, "
        "workload identity, managed identity and the Azure CLI that has one.")] = False
    scope: Annotated[str, _SCOPE] = ENTRA_SCOPE
    authority: Annotated[str, SettingDoc(
        "Address of Entra; national clouds have their own.",
        pattern=r"https://[^\s/?#@]+/?", form="like https://login.microsoftonline.com")] = "https://login.microsoftonline.com"

    def __post_init__(self) -> None:
        check_bounds(self)
        has_secret = self.client_secret is not None and bool(self.client_secret.reveal())
        if not has_secret:
            object.__setattr__(self, "client_secret", None)
        ways = [name for name, is_set in (("client_secret", has_secret), ("token_file", self.token_file),
                                          ("managed", self.managed)) if is_set]
        if len(ways) > 1:
            raise ValueError(f"{ways[1]} must not be set with {ways[0]}: choose one of them")
        if ways and ways != ["managed"]:
            for name in ("tenant_id", "client_id"):
                if not getattr(self, name):
                    raise ValueError(f"{name} is missing: {ways[0]} requires it")


@dataclass(frozen=True, slots=True)
class GoogleCredentials:
    """Google: a file, the metadata server, or the application default credentials."""

    kind: Annotated[Literal["google"], SettingDoc(
        "Tokens of Google, for Vertex; needs pip install '.[google]' in Stayfast's checkout.")] = "google"
    file: Annotated[str, SettingDoc(
        "JSON file of a service account, of workload identity federation, of impersonation, or of a user; read at each "
        "renewal. Empty: the application default credentials.", pattern=_FILE, form="a path")] = ""
    managed: Annotated[bool, SettingDoc("Use the machine's service account, by the metadata server, only.")] = False
    scope: Annotated[str, _SCOPE] = GOOGLE_SCOPE

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.file and self.managed:
            raise ValueError("managed must not be set with file: choose one of them")


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """AWS: given keys, else what botocore finds: environment, profile, SSO, web identity, container, instance."""

    kind: Annotated[Literal["aws"], SettingDoc(
        "Keys of AWS that sign each request, for Bedrock; needs pip install '.[bedrock]' in Stayfast's checkout.")] = "aws"
    access_key_id: Annotated[Secret | None, SettingDoc(
        "Access key, as a reference: ${AWS_ACCESS_KEY_ID}. null: botocore's chain.")] = None
    secret_access_key: Annotated[Secret | None, SettingDoc("Its secret, as a reference: ${AWS_SECRET_ACCESS_KEY}.")] = None
    session_token: Annotated[Secret | None, SettingDoc("Of temporary keys, as a reference: ${AWS_SESSION_TOKEN}.")] = None
    profile: Annotated[str, SettingDoc("Profile of ~/.aws/config. Empty: AWS_PROFILE, or the default one.",
                                       pattern=r"|[^\s\x00-\x1f]{1,200}", form="a name")] = ""
    role_arn: Annotated[str, SettingDoc(
        "Role to assume by STS.", pattern=r"|arn:[!-~]{1,2000}", form="like arn:aws:iam::123456789012:role/name")] = ""
    external_id: Annotated[Secret | None, SettingDoc("External id that the role requires.")] = None

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("access_key_id", "secret_access_key", "session_token", "external_id"):
            value: Secret | None = getattr(self, name)
            if value is not None and not value.reveal():
                object.__setattr__(self, name, None)
            elif value is not None and not fullmatch(r"[!-~]+", value.reveal()):
                raise ValueError(f"{name} must be visible ASCII characters, without spaces or line breaks")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            name = "access_key_id" if self.access_key_id is None else "secret_access_key"
            raise ValueError(f"{name} is missing: a key and its secret go together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("access_key_id is missing: session_token belongs to a key")
        if self.profile and self.access_key_id is not None:
            raise ValueError("profile must not be set with access_key_id: choose one of them")
        if self.external_id is not None and not self.role_arn:
            raise ValueError("role_arn is missing: external_id belongs to a role")


Credentials = EntraCredentials | GoogleCredentials | AwsCredentials
_PACKAGES = {"entra": ("azure.identity", "azure"), "google": ("google.auth", "google"), "aws": ("botocore", "bedrock")}


def credentials_problem(credentials: Credentials) -> str | None:
    """Why they cannot be fetched on this machine; None if they can."""
    package, extra = _PACKAGES[credentials.kind]
    if not _is_installed(package):
        return (f"kind {credentials.kind} needs a package that is not installed: pip install '.[{extra}]' in Stayfast's "
                "checkout")
    for name in ("token_file", "file"):
        path = getattr(credentials, name, "")
        if path and not Path(path).is_file():
            return f"{name}: there is no such file"
    return None


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is not installed
        return False
