"""The control endpoints, under `/_sim/`: what was asked so far, and what goes wrong from now on.

    GET    /_sim/counts           what each provider was asked, and what was thrown away
    GET    /_sim/requests?n=20    the last requests, newest first
    GET    /_sim/config           what each provider is
    POST   /_sim/reset            as after a start: counts, quotas, faults, weather, dice
    POST   /_sim/faults           add a fault rule; {"provider": NAME, ...} to one provider, else to all
    DELETE /_sim/faults           take all added rules away
    POST   /_sim/regime           {"regime": "brownout"}; null: as configured; {"provider": NAME, ...} for one provider
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

import msgspec
from msgspec import Struct

from stayfast.core.errors import Rejected
from stayfast.lab.sim_server.answer import SimRequest, SimulatorState
from stayfast.lab.simulated import FaultRule, Provider, ProviderConfig, RegimeState
from stayfast.wire.dialect import missing
from stayfast.wire.json_input import check, typed

MAX_DEPTH: Final = 8
N_TOLD: Final = 20  # requests, where the query does not say


class RegimeOrder(Struct, forbid_unknown_fields=True):
    """The weather from now on; None: as configured."""

    regime: RegimeState | None
    provider: str | None = None


_ANY: Final = msgspec.json.Decoder(dict[str, Any])
_RULE: Final = msgspec.json.Decoder(FaultRule)
_RULE_FIELDS: Final = tuple(field.name for field in fields(FaultRule))
_REGIME: Final = msgspec.json.Decoder(RegimeOrder)


class ControlEndpoints:
    """What the control endpoints do. `providers` is changed in place by a reset."""

    __slots__ = ("_acts", "_desk", "_providers", "configs")

    def __init__(self, providers: dict[str, Provider], configs: Mapping[str, ProviderConfig], desk: SimulatorState) -> None:
        self._providers = providers
        self.configs = configs
        self._desk = desk
        self._acts: dict[str, dict[str, Callable[[SimRequest], object]]] = {
            "/_sim/counts": {"GET": lambda _: self.counts()},
            "/_sim/requests": {"GET": self._requests},
            "/_sim/config": {"GET": lambda _: {"providers": self.configs}},
            "/_sim/reset": {"POST": lambda _: self._reset()},
            "/_sim/faults": {"POST": self._add_fault, "DELETE": lambda _: self._clear_faults()},
            "/_sim/regime": {"POST": self._set_regime},
        }

    def answer(self, request: SimRequest) -> bytes:
        """The body of the answer. Raises Rejected."""
        acts = self._acts.get(request.path)
        if acts is None:
            known = ", ".join(self._acts)
            raise Rejected(f"There is no such control endpoint: there are {known}.", status=404, code="not_found")
        act = acts.get(request.method)
        if act is None:
            raise Rejected(f"This path takes {' or '.join(acts)}.", status=405, code="method_not_allowed")
        return msgspec.json.encode(act(request))

    def counts(self) -> dict[str, Any]:
        """What each provider was asked, what was thrown away, and how clients took refusals."""
        return {"providers": {name: provider.counts for name, provider in self._providers.items()},
                "clients": self._desk.grades.report()}

    def _requests(self, request: SimRequest) -> object:
        wanted = request.query.removeprefix(b"n=") or b"%d" % N_TOLD
        if not (wanted.isdigit() and len(wanted) < 10):
            raise Rejected("n must be a whole number", code="invalid_type", param="n")
        return {"requests": list(self._desk.records.last(int(wanted)))}

    def _reset(self) -> object:
        for name, config in self.configs.items():
            self._providers[name] = Provider(name, config, self._desk.clock)  # answers under way keep theirs
        self._desk.records.clear()
        self._desk.grades.clear()
        return {"providers": list(self._providers)}

    def _add_fault(self, request: SimRequest) -> object:
        check(request.body, MAX_DEPTH)
        fields = typed(_ANY, request.body)
        if "kind" not in fields:
            raise missing("kind")
        for name in fields.keys() - {"provider", *_RULE_FIELDS}:
            raise Rejected(f"{name[:100]!r} is no field of a fault: there are {', '.join(_RULE_FIELDS)}",
                           code="unknown_field", param=name[:100])
        rule = typed(_RULE, request.body)
        meant = self._meant(fields.get("provider"))
        for provider in meant.values():
            provider.inject(rule)
        return {"providers": list(meant), "rule": rule}

    def _clear_faults(self) -> object:
        for provider in self._providers.values():
            provider.clear()
        return {"providers": list(self._providers)}

    def _set_regime(self, request: SimRequest) -> object:
        check(request.body, MAX_DEPTH)
        order = typed(_REGIME, request.body)
        meant = self._meant(order.provider)
        for provider in meant.values():
            provider.set_regime(order.regime)
        return {"providers": list(meant), "regime": order.regime}

    def _meant(self, name: Any) -> Mapping[str, Provider]:
        if name is None:
            return self._providers
        if not isinstance(name, str) or name not in self._providers:
            raise Rejected(f"provider must be one of {', '.join(self._providers)}", code="unknown_provider",
                           param="provider")
        return {name: self._providers[name]}
