"""The gateways of a fleet as rows of a snapshot, and how they differ, for as long as they do."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from stayfast.core.findings import Finding
from stayfast.core.snapshot import FleetRow
from stayfast.policy.fleet.findings import find_differences
from stayfast.workers.fleet.records import GatewayRecord


class FleetOverview(NamedTuple):
    """Of one exchange."""

    findings: tuple[Finding, ...] = ()
    rows: tuple[FleetRow, ...] = ()


def compare(records: Sequence[GatewayRecord], seen_s_ago: Mapping[str, float], before: FleetOverview, at: float
            ) -> FleetOverview:
    """at: seconds since the epoch; a difference that `before` has keeps its begin."""
    since = {(finding.id, str(finding.where)): finding.since for finding in before.findings}
    found = find_differences([record.as_member() for record in records if record.version])
    return FleetOverview(
        tuple(msgspec.structs.replace(finding, since=since.get((finding.id, str(finding.where)), at)) for finding in found),
        tuple(FleetRow(record.id, record.version, seen_s_ago.get(record.id, 0.0),
                       sum(one.state == "open" for one in record.breakers))
              for record in sorted(records, key=lambda record: record.id)))
