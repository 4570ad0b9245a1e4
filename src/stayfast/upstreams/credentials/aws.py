"""Keys of AWS, by botocore (extra `bedrock`). Imported only if configured.

botocore looks in the environment, the files of its profiles (SSO and roles included), web identity tokens (IRSA), the
container's endpoint, and the instance metadata, in its order.
"""

from bisect import bisect_right
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from botocore.config import Config
from botocore.session import Session

from stayfast.core.clock import Clock
from stayfast.upstreams.authentication import AwsKeys
from stayfast.upstreams.credentials.fetching import HTTP_S
from stayfast.upstreams.credentials.renewed import IssuedCredential, RenewalFailed

MAX_LIFE_S = 48 * 3600
SESSION_NAME = "stayfast"


class AwsIdentity(NamedTuple):
    """Which identity to use: given keys, else what botocore finds for `profile` ("": its default). role_arn: a role that it
    assumes. region: of STS.
    """

    keys: AwsKeys | None = None
    profile: str = ""
    role_arn: str = ""
    external_id: str = ""
    region: str = ""

    def __repr__(self) -> str:
        return f"<AwsIdentity {self.profile} {self.role_arn}>"


def make_fetch(identity: AwsIdentity, clock: Clock) -> Callable[[], IssuedCredential[AwsKeys]]:
    """A function that fetches keys, and blocks."""
    def fetch() -> IssuedCredential[AwsKeys]:
        # a new session each time: one that lives returns its cached keys, and does not read its files again
        session = Session(profile=identity.profile or None)
        if identity.keys is not None:
            session.set_credentials(*identity.keys)
        if identity.role_arn:
            return _assume_role(session, identity)
        found = session.get_credentials()
        if found is None:
            raise RenewalFailed("botocore finds no credentials: no variable, profile, web identity, container or instance "
                                "has any")
        frozen = found.get_frozen_credentials()
        return IssuedCredential(AwsKeys(frozen.access_key, frozen.secret_key, frozen.token), clock.wall() + _left_s(found))

    return fetch


def _left_s(found: Any) -> float:
    """Seconds to the end of credentials; inf: they have none. They only answer whether it is nearer than a number."""
    if not hasattr(found, "refresh_needed"):
        return inf
    n = bisect_right(range(MAX_LIFE_S), False, key=found.refresh_needed)
    return inf if n == MAX_LIFE_S else max(0.0, n - 1.0)


def _assume_role(session: Session, identity: AwsIdentity) -> IssuedCredential[AwsKeys]:
    limits = Config(connect_timeout=HTTP_S, read_timeout=HTTP_S, retries={"total_max_attempts": 2})
    sts = session.create_client("sts", region_name=identity.region or session.get_config_variable("region") or "us-east-1",
                                config=limits)
    try:
        external = {"ExternalId": identity.external_id} if identity.external_id else {}
        issued = sts.assume_role(RoleArn=identity.role_arn, RoleSessionName=SESSION_NAME, **external)["Credentials"]
    finally:
        sts.close()
    return IssuedCredential(AwsKeys(issued["AccessKeyId"], issued["SecretAccessKey"], issued["SessionToken"]),
                            issued["Expiration"].timestamp())
