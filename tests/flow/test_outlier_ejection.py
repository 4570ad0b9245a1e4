"""An upstream that is left out as an outlier, and taken back: each is an event, a log line and a count, with its reason."""

from dataclasses import replace
from random import Random

import msgspec

from stayfast.core.errors import StayfastError
from stayfast.core.events import Ejected
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.observe.metrics.collector import MetricsSink
from stayfast.observe.metrics.definitions import EJECTIONS
from stayfast.observe.snapshot.traffic import TrafficSink
from stayfast.pipeline.routing.selector import PickConfig, UpstreamSelector
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.routing.outlier_ejection import EjectConfig
from stayfast.testing import Fail, Script, SendText, SimLoop, Wait, run
from tests.flow.rig import MODEL, Rig, read


class RecordingWriter(LineWriter):
    """Keeps them."""

    def __init__(self) -> None:
        super().__init__(LogConfig())
        self.lines: list[dict[str, object]] = []

    def write(self, line: bytes) -> None:
        """Take one."""
        self.lines.append(msgspec.json.decode(line))


def test_outlier_ejection_and_return_are_reported_once() -> None:
    """An upstream fails every second call; 30 s after its ejection it returns."""
    async def main(loop: SimLoop) -> None:
        good: Script = [Wait(0.05), SendText("x")]
        rig = Rig(loop, [[Fail(status=500)], good], [good], breaker=BreakerConfig(enabled=False))
        routes = rig.gateway.router.routes
        assert isinstance(routes, dict)
        config = PickConfig(eject=EjectConfig(enabled=True, min_calls=10))
        routes[MODEL] = replace(routes[MODEL], selector=UpstreamSelector(config, MODEL, rig.sink))
        rng = Random(1)
        while loop.now() < 120 and len(rig.sink.facts_of(Ejected)) < 2:
            loop.stall(rng.uniform(0.0, 0.1))
            try:
                await read(await rig.serve())
            except StayfastError:
                continue
        out, back = rig.sink.facts_of(Ejected)
        assert (out.route, out.upstream, out.is_out) == (MODEL, "up0", True)
        assert "of its calls failed, 0% of the others' calls, ejected for 30 s" in out.why
        assert (back.upstream, back.is_out) == ("up0", False)
        lines, metrics = RecordingWriter(), MetricsSink(loop, TrafficSink(loop))
        handle_facts(LogSink(LogConfig(), lines, loop), [out, back])
        assert [(line["event"], line["level"], line["upstream"]) for line in lines.lines] == [
            ("ejected", "warning", "up0"), ("readmitted", "info", "up0")]
        handle_facts(metrics, [out, back])
        assert metrics.totals.counters[EJECTIONS.name] == {(MODEL, "up0"): 1}

    run(main)
