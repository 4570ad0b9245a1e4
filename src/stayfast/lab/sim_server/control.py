"""The control endpoints under `/_sim/`: request counts and records, and faults from now on.

    GET    /_sim/counts           per provider: requests, tokens, costs; per client: how it handles refusals
    GET    /_sim/requests?n=20    the latest requests, newest first
    GET    /_sim/config           the configuration of each provider
    POST   /_sim/reset            the state after a start: counts, quotas, faults, regimes, random numbers
    POST   /_sim/faults           add a fault rule; {"provider": NAME, ...} for one provider, else for all
    DELETE /_sim/faults           remove all added rules
    POST   /_sim/regime           {"regime": "brownout"}; null: as configured; {"provider": NAME, ...} for one provider
    POST   /_sim/engine           figures of /metrics: {"figures": {"waiting": 40}, "provider": NAME}; null: the engine's own
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.errors import Rejected
from stayfast.lab.sim_server.answer import SimRequest, SimulatorState
from stayfast.lab.simulated import FaultRule, Provider, ProviderConfig, RegimeState
from stayfast.lab.simulated.engine_page import EnginePage, render_engine_page
from stayfast.wire.dialect import missing_field
from stayfast.wire.request_body import check_json_bounds, decode_typed

MAX_DEPTH: Final = 8
DEFAULT_N_REQUESTS: Final = 20  # of /_sim/requests


class RegimeOrder(Struct, forbid_unknown_fields=True):
    """The regime from now on; None: as configured."""

    regime: RegimeState | None
    provider: str | None = None


class EngineOrder(Struct, forbid_unknown_fields=True):
    """The figures of `/metrics` from now on; None: the engine's own."""

    figures: EnginePage | None
    provider: str | None = None


_ENGINE: Final = msgspec.json.Decoder(EngineOrder)
_ANY: Final = msgspec.json.Decoder(dict[str, Any])
_RULE: Final = msgspec.json.Decoder(FaultRule)
_RULE_FIELDS: Final = tuple(field.name for field in fields(FaultRule))
_REGIME: Final = msgspec.json.Decoder(RegimeOrder)


class ControlEndpoints:
    """The handlers of the control endpoints. A reset changes `providers` in place."""

    __slots__ = ("_handlers", "_pages", "_providers", "_state", "configs")

    def __init__(self, providers: dict[str, Provider], configs: Mapping[str, ProviderConfig], state: SimulatorState) -> None:
        self._providers = providers
        self.configs = configs
        self._state = state
        self._pages: dict[str, EnginePage] = {}  # by provider
        self._handlers: dict[str, dict[str, Callable[[SimRequest], object]]] = {
            "/_sim/counts": {"GET": lambda _: self.counts()},
            "/_sim/requests": {"GET": self._list_requests},
            "/_sim/config": {"GET": lambda _: {"providers": self.configs}},
            "/_sim/reset": {"POST": lambda _: self._reset()},
            "/_sim/faults": {"POST": self._add_fault, "DELETE": lambda _: self._clear_faults()},
            "/_sim/regime": {"POST": self._set_regime},
            "/_sim/engine": {"POST": self._set_engine},
        }

    def handle(self, request: SimRequest) -> bytes:
        """The body of the answer. Raises Rejected."""
        handlers = self._handlers.get(request.path)
        if handlers is None:
            known = ", ".join(self._handlers)
            raise Rejected(f"Unknown control endpoint. Supported: {known}.", status=404, code="not_found")
        handler = handlers.get(request.method)
        if handler is None:
            raise Rejected(f"This path accepts {' or '.join(handlers)}.", status=405, code="method_not_allowed")
        return msgspec.json.encode(handler(request))

    def counts(self) -> dict[str, Any]:
        """The counts of each provider, and how each client handled refusals."""
        return {"providers": {name: provider.counts for name, provider in self._providers.items()},
                "clients": self._state.grades.report()}

    def _list_requests(self, request: SimRequest) -> object:
        wanted = request.query.removeprefix(b"n=") or b"%d" % DEFAULT_N_REQUESTS
        if not (wanted.isdigit() and len(wanted) < 10):
            raise Rejected("n must be a whole number", code="invalid_type", param="n")
        return {"requests": list(self._state.records.latest(int(wanted)))}

    def _reset(self) -> object:
        for name, config in self.configs.items():
            self._providers[name] = Provider(name, config, self._state.clock)  # running answers keep the old one
        self._pages.clear()
        self._state.records.clear()
        self._state.grades.clear()
        return {"providers": list(self._providers)}

    def _add_fault(self, request: SimRequest) -> object:
        check_json_bounds(request.body, MAX_DEPTH)
        fields = decode_typed(_ANY, request.body)
        if "kind" not in fields:
            raise missing_field("kind")
        for name in fields.keys() - {"provider", *_RULE_FIELDS}:
            raise Rejected(f"{name[:100]!r} is not a field of a fault. Supported: {', '.join(_RULE_FIELDS)}",
                           code="unknown_field", param=name[:100])
        rule = decode_typed(_RULE, request.body)
        providers = self._select_providers(fields.get("provider"))
        for provider in providers.values():
            provider.add_fault(rule)
        return {"providers": list(providers), "rule": rule}

    def _clear_faults(self) -> object:
        for provider in self._providers.values():
            provider.clear_faults()
        return {"providers": list(self._providers)}

    def _set_regime(self, request: SimRequest) -> object:
        check_json_bounds(request.body, MAX_DEPTH)
        order = decode_typed(_REGIME, request.body)
        providers = self._select_providers(order.provider)
        for provider in providers.values():
            provider.set_regime(order.regime)
        return {"providers": list(providers), "regime": order.regime}

    def render_engine_page(self, name: str) -> bytes:
        """The `/metrics` page of a provider."""
        return render_engine_page(self._providers[name], self._pages.get(name)).encode()

    def _set_engine(self, request: SimRequest) -> object:
        check_json_bounds(request.body, MAX_DEPTH)
        order = decode_typed(_ENGINE, request.body)
        providers = self._select_providers(order.provider)
        for name in providers:
            if order.figures is None:
                self._pages.pop(name, None)
            else:
                self._pages[name] = order.figures
        return {"providers": list(providers), "figures": order.figures}

    def _select_providers(self, name: Any) -> Mapping[str, Provider]:
        if name is None:
            return self._providers
        if not isinstance(name, str) or name not in self._providers:
            raise Rejected(f"provider must be one of {', '.join(self._providers)}", code="unknown_provider",
                           param="provider")
        return {name: self._providers[name]}
