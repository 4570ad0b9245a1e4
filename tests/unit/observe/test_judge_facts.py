"""What the log and the metrics make of a judge of answers."""

from pathlib import Path

import msgspec

from stayfast.core.events import JudgeUnclear, SemanticJudged
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from stayfast.observe.metrics.definitions import COST, SEMANTIC_JUDGED
from tests.unit.observe.fact_rig import FrozenClock, attempt, counted, counting


def test_log_line_of_a_judge_without_verdicts_has_the_remedy(tmp_path: Path) -> None:
    """The route, its judge, the number, the last reply's kind, and the setting to change; no line for each verdict."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        config = LogConfig(fd=file.fileno())
        writer = LineWriter(config)
        writer.start()
        sink = LogSink(config, writer, FrozenClock(100.0, 100.0))
        handle_facts(sink, [JudgeUnclear("faq", "small", 20, "an empty reply"), SemanticJudged("faq", "same")])
        writer.close()
    (line,) = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert (line["event"], line["level"], line["route"], line["judge"], line["n"]) == (
        "semantic_judge", "warning", "faq", "small", 20)
    for words in ("neither yes nor no 20 times in a row (last: an empty reply)", "no hits", "routes.faq.cache.judge"):
        assert words in line["detail"]


def test_metrics_of_a_judge_count_verdicts_and_cost() -> None:
    """The cost of its attempts is apart from that of clients' requests."""
    metrics = counting(SemanticJudged("faq", "same"), SemanticJudged("faq", "same"), SemanticJudged("faq", "no_budget"),
                       attempt(role="judge", cost_usd=0.25), attempt(cost_usd=0.5))
    assert counted(metrics, SEMANTIC_JUDGED) == {("faq", "same"): 2, ("faq", "no_budget"): 1}
    assert sorted((labels[2], usd) for labels, usd in counted(metrics, COST).items()) == [("first", 0.5), ("judge", 0.25)]
