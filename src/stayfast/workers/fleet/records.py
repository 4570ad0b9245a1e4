"""What the gateways of a fleet send each other, and the workers of one gateway. Encoded as msgpack, with field names: fields
may be added; gateways of other versions ignore unknown ones.
"""

from typing import Any

import msgspec

from stayfast.policy.fleet.breaker_hints import BreakerView
from stayfast.policy.fleet.findings import FleetMember
from stayfast.policy.merged_times import MergedTimes

MAX_RECORD_BYTES = 64 * 1024
MAX_BREAKERS = 64  # that are not closed, in one record


class OpenBreaker(msgspec.Struct, frozen=True):
    """A breaker that is not closed. `by`: own (evidence) or quorum."""

    upstream: str
    model: str | None
    state: str
    by: str
    why: str
    left_s: float


class GatewayRecord(msgspec.Struct, frozen=True):
    """One gateway. `since`: wall-clock seconds of its start. `config`: digests of sections of its settings, "all": of all.
    `views`: its breakers, by upstream digest; `names`: readable names of these digests.
    """

    id: str
    host: str = ""
    pids: tuple[int, ...] = ()
    version: str = ""
    since: float = 0.0
    in_flight: int = 0
    is_draining: bool = False
    config: dict[str, str] = {}
    breakers: tuple[OpenBreaker, ...] = ()
    views: dict[str, BreakerView] = {}
    sent_at: float = 0.0  # by its monotonic clock
    names: dict[str, str] = {}

    def as_member(self) -> FleetMember:
        names = {digest: self.names.get(digest, digest) for digest in self.views}
        return FleetMember(
            self.id, self.version, {name: digest for name, digest in self.config.items() if name != "all"},
            {digest: names[digest] for digest, view in self.views.items() if view.has_traffic and not view.is_open},
            {digest: names[digest] for digest, view in self.views.items() if view.is_open})

    def as_row(self, seen_s_ago: float, *, is_self: bool) -> dict[str, Any]:
        """The row of `GET /admin/gateways`."""
        return {"id": self.id, "host": self.host, "pids": self.pids, "workers": len(self.pids), "version": self.version,
                "since": self.since, "seen_s_ago": round(seen_s_ago, 3), "in_flight": self.in_flight,
                "draining": self.is_draining, "config": self.config.get("all", ""), "breakers": self.breakers,
                "answers": is_self}


class BreakerHint(msgspec.Struct, frozen=True, tag="breaker"):
    """A breaker opened or closed."""

    gateway: str
    digest: str
    view: BreakerView
    sent_at: float  # by the sender's monotonic clock


class PurgeOrder(msgspec.Struct, frozen=True, tag="purge"):
    """Drop stored answers. `what`: the filter, encoded by the sender's floor. `call`: where to reply; empty: no reply."""

    gateway: str
    call: str
    what: bytes


class PurgeReply(msgspec.Struct, frozen=True, array_like=True):
    """The result of a purge at one gateway, encoded by the sender's floor."""

    gateway: str
    result: bytes


class FleetNews(msgspec.Struct, frozen=True):
    """From one process of a gateway to a worker. `n_gateways`: None: unknown to this process, unchanged. `times`: of all
    other processes; None: unchanged.
    """

    n_gateways: int | None = None
    times: dict[str, MergedTimes] | None = None


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker's reply. `times`: its own; None: not requested."""

    pid: int
    in_flight: int
    is_draining: bool
    times: dict[str, MergedTimes] | None = None


FleetMessage = BreakerHint | PurgeOrder
encode_message = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(GatewayRecord).decode
decode_message = msgspec.msgpack.Decoder(FleetMessage).decode
decode_reply = msgspec.msgpack.Decoder(PurgeReply).decode
decode_times = msgspec.msgpack.Decoder(dict[str, MergedTimes]).decode


def read_record(gateway: str, data: bytes) -> GatewayRecord:
    """The record of a gateway; one with the id only, if another version wrote it."""
    try:
        record = decode_record(data)
    except msgspec.DecodeError:
        return GatewayRecord(gateway)
    return record if record.id == gateway else GatewayRecord(gateway)


def read_times(data: bytes) -> dict[str, MergedTimes]:
    """The histograms of a gateway; none, if they are damaged or too large."""
    if len(data) > MAX_RECORD_BYTES:
        return {}
    try:
        times = decode_times(data)
    except msgspec.DecodeError:
        return {}
    return {kind: one for kind, one in times.items() if len(one.ended) % 2 == 0 and len(one.cut_off) % 2 == 0}
