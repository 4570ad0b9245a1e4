"""Who sent a request, and what its key may do."""

import msgspec

from stayfast.core.errors import Rejected
from stayfast.policy.keys.scopes import ALL_ROUTES, KeyScopes


class Principal(msgspec.Struct, frozen=True):
    """A key. key_id: empty for one of the settings file. actor: for the audit log."""

    tenant: str
    scopes: KeyScopes = ALL_ROUTES
    key_id: str = ""

    @property
    def actor(self) -> str:
        return self.key_id or self.tenant

    def check_route(self, model: str, param: str = "model") -> None:
        """Raises Rejected (403) for a model that the key's scopes do not allow."""
        if not self.scopes.allows_all_routes and not self.scopes.allows_route(model):
            raise Rejected(f"This key may not call the model {model[:128]!r}: its scopes do not allow it. GET /v1/models "
                           "lists the models that it may call.", status=403, code="route_not_allowed", param=param)


def allows_route(caller: Principal | None, model: str) -> bool:
    """Whether a caller may call a model; None: a gateway without keys."""
    return caller is None or caller.scopes.allows_all_routes or caller.scopes.allows_route(model)


def check_all_routes(caller: Principal | None) -> None:
    """Raises Rejected (403) if a caller is restricted to routes: what is passed through names none that could be checked."""
    if caller is not None and not caller.scopes.allows_all_routes:
        raise Rejected("This key is restricted to routes, so it may not call endpoints that the gateway passes to a "
                       "provider.", status=403, code="route_not_allowed")


def is_admin(caller: Principal | None) -> bool:
    """Whether a caller sees all tenants; None: a gateway without keys."""
    return caller is None or caller.scopes.is_admin


def admins_only() -> Rejected:
    """The error of an endpoint for admins."""
    return Rejected("This endpoint needs an admin key: one whose name is in server.admins, or a stored key with the scope "
                    "admin.", status=403, code="admins_only")
