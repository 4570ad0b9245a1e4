"""Identities at Azure, AWS and Google that are no API key: `credentials` of an upstream."""

from collections.abc import Callable

from stayfast.settings.litellm_import.ledger import SourceNode
from stayfast.settings.litellm_import.scalars import SecretNames, as_reference, variable_of

Find = Callable[..., SourceNode | None]  # the first value with one of these names
Parts = tuple[tuple[str, str], ...]
_AWS_KEYS = (("aws_access_key_id", "access_key_id"), ("aws_secret_access_key", "secret_access_key"),
             ("aws_session_token", "session_token"))


def read_credentials(provider: str, find: Find, secrets: SecretNames) -> Parts:
    """The settings of `credentials`; empty if the provider, or the entry, has none."""
    if provider.startswith("azure"):
        return _read_entra(find, secrets)
    if provider.startswith("vertex"):
        return _read_google(find, secrets)
    return _read_aws(find, secrets) if provider.startswith("bedrock") else ()


def _read_entra(find: Find, secrets: SecretNames) -> Parts:
    parts = [(name, as_reference(node.text)) for name in ("tenant_id", "client_id")
             if (node := find(name)) is not None and node.text]
    secret = find("client_secret")
    if secret is not None and secret.text:
        parts.append(("client_secret", secrets.take_secret(secret, "AZURE_CLIENT_SECRET", "`credentials`")))
    return (("kind", "entra"), *parts) if parts else ()


def _read_google(find: Find, secrets: SecretNames) -> Parts:
    node = find("vertex_credentials", "vertex_ai_credentials")
    if node is None or not node.text:
        return ()
    if node.text.lstrip().startswith("{"):
        reference = secrets.take_secret(node, "GOOGLE_CREDENTIALS_FILE", "`credentials: {kind: google, file: ...}`")
        node.differ("`credentials: {kind: google, file: ...}`",
                    f"a key in clear text: write it to a file, and set the variable {reference[2:-1]} to its path")
        return ("kind", "google"), ("file", reference)
    if (name := variable_of(node.text)) is not None:
        node.differ("`credentials: {kind: google, file: ...}`", f"{name} must be the path of a file, not its JSON")
    return ("kind", "google"), ("file", as_reference(node.text))


def _read_aws(find: Find, secrets: SecretNames) -> Parts:
    parts: list[tuple[str, str]] = []
    keys = [(to, node) for name, to in _AWS_KEYS if (node := find(name)) is not None and node.text]
    if {"access_key_id", "secret_access_key"} <= {to for to, _ in keys}:
        parts += [(to, secrets.take_secret(node, f"AWS_{to}", "`credentials`")) for to, node in keys]
    else:
        for _, node in keys:
            node.refuse("a key and its secret go together")
    profile, role, outer = find("aws_profile_name"), find("aws_role_name"), find("aws_external_id")
    if profile is not None and profile.text:
        if parts:
            profile.refuse("the keys of the entry apply")
        else:
            parts.append(("profile", as_reference(profile.text)))
    if role is not None and role.text:
        parts.append(("role_arn", as_reference(role.text)))
    if outer is not None and outer.text:
        if role is None or not role.text:
            outer.refuse("belongs to a role")
        else:
            parts.append(("external_id", secrets.take_secret(outer, "AWS_EXTERNAL_ID", "`credentials`")))
    return (("kind", "aws"), *parts) if parts else ()
