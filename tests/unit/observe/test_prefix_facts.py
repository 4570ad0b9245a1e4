"""What the log makes of findings about prefix caches."""

from pathlib import Path

import msgspec

from stayfast.core.events import PrefixFinding
from stayfast.observe.fact_batch import handle_facts
from stayfast.observe.log import LineWriter, LogConfig, LogSink
from tests.unit.observe.fact_rig import FrozenClock


def test_a_finding_is_a_line_that_names_the_block_and_the_price(tmp_path: Path) -> None:
    """In words of ours; without a price none is named."""
    path = tmp_path / "log"
    with path.open("wb") as file:
        config = LogConfig(fd=file.fileno())
        writer = LineWriter(config)
        writer.start()
        sink = LogSink(config, writer, FrozenClock(100.0, 100.0))
        found = PrefixFinding("agents", "anthropic", "claude-opus-5", "moves", "system[0]", 212, "a timestamp",
                              11240, 412.5)
        handle_facts(sink, [
            found, msgspec.structs.replace(found, usd_a_day=None), msgspec.structs.replace(found, what="unread")])
        writer.close()
    said = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert said[0] == {"ts": 100.0, "event": "prefix_cache", "level": "warning", "route": "agents",
                       "upstream": "anthropic", "what": "moves", "detail":
                       "a timestamp at byte 212 of system[0] makes 11240 tokens uncacheable, $412.5 a day"}
    assert said[1]["detail"].endswith("uncacheable")
    assert "never read" in said[2]["detail"]
