"""The screen of `stayfast top`."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stayfast.cli.top_screen import WIDTH, badness, draw_screen
from stayfast.core.snapshot import LiveEngine, LiveFinding, LiveFrame, LiveRoute, LiveUpstream, Spread
from stayfast.lab.report.table import TerminalStyle

PLAIN = TerminalStyle(is_on=False)
URL = "http://127.0.0.1:8090"
CHAT = LiveRoute("chat", n=3, rps=38.2, ttft_s=Spread(100, 0.42, 0.9, 1.8), promise_s=2.0, hedged_ratio=0.041,
                 cached_ratio=0.213, output_tokens_per_s=1234.0)
SLOW = LiveRoute("slow", n=3, rps=1.0, ttft_s=Spread(100, 1.0, 4.0, 9.0), promise_s=2.0)


def test_screen_worst_route_comes_first_and_fits_80_columns() -> None:
    frame = LiveFrame(0.0, 1, "gw-1", "1.0", routes=(CHAT, SLOW), upstreams=(LiveUpstream("openai", breaker="open"),),
                      findings=(LiveFinding("latency.tail", "act", "route slow", "p99 is 9 times p50. " * 9),))
    lines = draw_screen(frame, PLAIN, url=URL)
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert text.index("slow") < text.index("chat")
    assert "420ms" in text
    assert "act  route slow: p99 is 9 times p50." in text


def test_screen_sums_requests_in_flight_of_upstreams() -> None:
    """They are counted by upstream. A route has its share of answers from the cache and its tokens."""
    upstreams = (LiveUpstream("a", in_flight=20, waiting=3), LiveUpstream("b", in_flight=4))
    lines = draw_screen(LiveFrame(0.0, 1, routes=(CHAT,), upstreams=upstreams), PLAIN, url=URL)
    assert "24 in flight  3 waiting" in lines[1]
    heading, row = next((head, row) for head, row in pairwise(lines) if row.startswith("chat"))
    shown = dict(zip(heading.replace("TTFT p50", "p50").split()[1:], row.split()[1:], strict=True))
    assert (shown["cach%"], shown["tok/s"]) == ("21.3", "1234")


def test_screen_engines_have_slots_hit_rate_and_speed() -> None:
    """Of upstreams with metrics; unknown figures are dashes. Without such upstreams there is no such table."""
    engine = LiveEngine(3.0, 4.0, 0.75, None, 812.0, 3737.0, 2.0)
    upstreams = (LiveUpstream("tiny", engine=engine), LiveUpstream("gpu", engine=LiveEngine()), LiveUpstream("openai"))
    lines = draw_screen(LiveFrame(0.0, 1, routes=(CHAT,), upstreams=upstreams), PLAIN, url=URL)
    heading = next(number for number, line in enumerate(lines) if line.startswith("ENGINE"))
    shown = {row.split()[0]: dict(zip(lines[heading].split()[1:], row.split()[1:], strict=True))
             for row in lines[heading + 1:heading + 3]}
    assert shown["tiny"] == {"slots": "3/4", "hit%": "75.0", "KV%": "-", "tok/s": "812", "prefill/s": "3737", "age": "2.00s"}
    assert shown["gpu"]["slots"] == "-/-"
    assert len(lines) == heading + 3
    plain = draw_screen(LiveFrame(0.0, 1, routes=(CHAT,), upstreams=upstreams[2:]), PLAIN, url=URL)
    assert not any(line.startswith("ENGINE") for line in plain)
    many = tuple(LiveUpstream(f"e{n}", engine=engine) for n in range(9))
    short = draw_screen(LiveFrame(0.0, 1, routes=(CHAT,), upstreams=many), PLAIN, url=URL, n_lines=24)
    assert len(short) <= 24
    assert "and " in short[-1]


def test_screen_old_frame_is_never_shown_as_live() -> None:
    lines = draw_screen(LiveFrame(0.0, 1, routes=(CHAT,)), PLAIN, url=URL, age_s=7.0)
    assert any(line.startswith("no data for 7 s") for line in lines)


def test_screen_of_a_short_terminal_counts_what_it_leaves_out() -> None:
    routes = tuple(LiveRoute(f"r{number}", rps=1.0) for number in range(50))
    lines = draw_screen(LiveFrame(0.0, 1, routes=routes, upstreams=(LiveUpstream("up"),)), PLAIN, url=URL, n_lines=20)
    assert len(lines) <= 20
    assert any(line.strip().startswith("and ") for line in lines)


def test_screen_without_requests_explains_itself() -> None:
    assert any("No request in the last minute" in line for line in draw_screen(LiveFrame(0.0, 1), PLAIN, url=URL))


def test_badness_failures_outweigh_a_fast_p99() -> None:
    assert badness(LiveRoute("a", failed_ratio=0.5, ttft_s=Spread(9, 0.1, 0.1, 0.1))) > badness(SLOW)


@given(name=st.text(max_size=200), rps=st.floats(0, 1e6), n_lines=st.one_of(st.none(), st.integers(10, 60)))
def test_screen_any_name_fits(name: str, rps: float, n_lines: int | None) -> None:
    frame = LiveFrame(0.0, 1, name, routes=(LiveRoute(name, rps=rps),), upstreams=(LiveUpstream(name, rps=rps),))
    lines = draw_screen(frame, PLAIN, url=URL, n_lines=n_lines)
    assert all(len(line) <= WIDTH and line.isprintable() for line in lines)
