"""The pass-through of one set of settings."""

from collections.abc import Mapping

from stayfast.core.clock import Clock
from stayfast.core.events import Sink
from stayfast.pipeline.passthrough.call import ChargeUnread, PassedCall, PassedRequest
from stayfast.pipeline.passthrough.config import PassThroughConfig
from stayfast.pipeline.passthrough.upstream import PassedUpstream
from stayfast.wire.passthrough.paths import PassedPaths


class PassThrough:
    """Where paths are passed to. Never changes; a reload makes another, with the same upstreams if they are unchanged."""

    __slots__ = ("_charge", "_clock", "_sink", "config", "paths", "upstreams")

    def __init__(self, config: PassThroughConfig, upstreams: Mapping[str, PassedUpstream], *, charge: ChargeUnread | None,
                 clock: Clock, sink: Sink) -> None:
        """charge: None: no quotas."""
        self.config = config
        self.upstreams = upstreams
        self.paths = PassedPaths(config.upstream, config.paths)
        self._charge = charge
        self._clock = clock
        self._sink = sink

    def start_call(self, request: PassedRequest, upstream: str, *, is_socket: bool = False) -> PassedCall:
        """The caller must `end` the call."""
        return PassedCall(request, self.upstreams[upstream], self.config, charge=self._charge, clock=self._clock,
                          sink=self._sink, is_socket=is_socket)

    def base_path(self, upstream: str) -> str:
        return self.upstreams[upstream].endpoint.base_path

    def close(self, successor: "PassThrough | None" = None) -> None:
        """Close idle connections, except of upstreams that `successor` reuses."""
        for name, upstream in self.upstreams.items():
            if successor is None or successor.upstreams.get(name) is not upstream:
                upstream.close()

    def __repr__(self) -> str:
        return f"<PassThrough {self.paths!r}>"
