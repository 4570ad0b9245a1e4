"""A traced request, and the spans and attributes that a collector decodes from the exported bytes."""

from random import Random
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stayfast.core.events import AttemptDone, RequestDone, Stall, Trace
from stayfast.core.stage_times import StageDone
from stayfast.core.types import Outcome, Stage, Usage
from stayfast.observe.tracing.config import Peer
from stayfast.observe.tracing.otlp import SpanEncoder
from tests.unit.observe.fact_rig import done

TRACE = Trace("a" * 32, "b" * 16, "c" * 16, is_sampled=True, state="foo=1", is_random=True)
STAGES = (StageDone(Stage.ADMIT, 1.0, 1.1, 5.0), StageDone(Stage.CALL, 1.1, 1.4, 0.2), StageDone(Stage.RELAY, 1.4, 2.0, 9.0))
FAILED = AttemptDone("m", "near", 1.1, 1.2, Outcome.DROPPED, None, "status", 1, "r", kind="openai", model="gpt-x",
                     upstream_status=503, span_id="d" * 16)
WON = AttemptDone("m", "far", 1.2, 2.0, Outcome.SUCCESS, 0.2, None, 2, "r", kind="anthropic", model="claude-x",
                  usage=Usage(100, 20, 60, 5, 6, 7), finish_reason="end_turn", cost_usd=0.5, stalls=(Stall(1.5, 0.3),),
                  span_id="e" * 16)

def request(**changes: object) -> RequestDone:
    """A request of one second with a failed call and a good one."""
    return done(**{"trace": TRACE, "accepted_at": 1.0, "ended_at": 2.0, "wall_at": 1_700_000_000.0, "stages": STAGES,
                   "attempts": (FAILED, WON), "n_attempts": 2, "total_s": 30.0, "queue_s": 0.05, "tpot_s": 0.02,
                   "over_stage": Stage.CALL, **changes})


def exported(*requests: RequestDone, peers: dict[str, Peer] | None = None) -> list[Any]:
    """The spans as a collector decodes them."""
    encoded = SpanEncoder({"service.name": "gw"}, "1.2", Random(1)).encode(requests, peers or {})
    (group,) = ExportTraceServiceRequest.FromString(encoded).resource_spans
    assert attributes(group.resource) == {"service.name": "gw"}
    (scope,) = group.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("stayfast", "1.2")
    return list(scope.spans)


def attributes(described: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    found = {}
    for pair in described.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found
