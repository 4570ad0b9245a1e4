"""The page: escaping, no network access, and its charts."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from math import nan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.lab.load.result import ClientHealth, Error, Mode, Result, Subject
from stayfast.lab.load.stats import MeasuredRun
from stayfast.lab.report.assertions import check_assertions, parse_assertion
from stayfast.lab.report.compare import CompareConfig, compare_runs
from stayfast.lab.report.html import charts
from stayfast.lab.report.html.frame import (
    WIDE,
    AxisScale,
    format_instant,
    format_tick_count,
    format_tick_s,
    linear_scale,
    log_scale,
    make_ticks,
    make_time_ticks,
)
from stayfast.lab.report.html.markup import format_number, json_data, tag
from stayfast.lab.report.html.page import render_page
from tests.bench.synthetic import Scenario, result

TINY = Scenario(n=6)
LOADING = frozenset({"src", "href", "srcset", "action", "poster", "background", "formaction", "ping", "xlink:href"})
ATTACKS = ("</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "<svg/onload=alert(1)>", "<!--", "]]>",
           "' onmouseover='x", "&lt;b&gt;", "\u202egnp.exe", "\x00\x1b[31m", "{{7*7}}", "javascript:alert(1)",
           "</style>", "\ud800")


class Skeleton(HTMLParser):
    """The elements and attributes of a page, and the text of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.shapes: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.names: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count an element by its shape."""
        self.shapes[tag, tuple(sorted(name for name, _ in attrs))] += 1
        self.names.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self.text += data


def named(text: str) -> Result:
    """A run in which every untrusted text is this one."""
    run = result(TINY, health=ClientHealth(verdict=(text,)))
    run.label, run.command, run.notes = text, text, (text,)
    run.subject = Subject(text, text, text, text)
    run.workload, run.machine = {"w" + text: text}, {"m" + text: text}
    return run


def whole_page(text: str) -> str:
    """Two such runs with a comparison and an assertion, and a sweep of them."""
    runs = [MeasuredRun(named(text)) for _ in range(2)]
    checks = check_assertions([parse_assertion("ttft.p99<1")], runs[0])
    return render_page(runs, compare_runs(runs[0], runs[1], Random(1), CompareConfig(n_replicates=100)), checks)


PLAIN_SHAPES = Skeleton(whole_page("plain")).shapes


@pytest.mark.parametrize("attack", ATTACKS)
def test_page_escapes_known_attacks(attack: str) -> None:
    """Elements and attributes are those of a page with harmless names."""
    assert Skeleton(whole_page(attack)).shapes == PLAIN_SHAPES


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=40))
def test_page_escapes_any_text(text: str) -> None:
    """For any text; and the page can be encoded as UTF-8."""
    html = whole_page(text)
    assert Skeleton(html).shapes == PLAIN_SHAPES
    html.encode()


@given(st.text(max_size=60))
def test_page_text_is_unchanged(text: str) -> None:
    found = Skeleton(tag("p", text)).text
    assert all(out in {char, "\ufffd"} for out, char in zip(found, text, strict=True))
    assert "<" not in json_data({"name": text})[len('<script type="application/json">'):-len("</script>")]


def test_page_makes_no_network_requests() -> None:
    """No attribute that loads, no style that imports, a strict policy, and one script that matches its digest."""
    html = whole_page("plain")
    skeleton = Skeleton(html)
    assert skeleton.names & LOADING == set()
    assert re.findall(r"url\(|@import|https?://(?!127\.0\.0\.1|www\.w3\.org)|fetch\(|XMLHttpRequest|WebSocket", html) == []
    assert "default-src &#x27;none&#x27;" in html
    assert len(re.findall(r"<script(?! type=\"application/json\")", html)) == 1
    assert not any(name.startswith("on") for name in skeleton.names)


def test_page_invalid_run_is_marked_first() -> None:
    """Before the heading, with its reasons."""
    html = render_page([MeasuredRun(result(TINY, health=ClientHealth(verdict=("late by 31 ms",))))])
    assert html.index("INVALID") < html.index("late by 31 ms") < html.index("<h1")
    assert 'role="alert"' not in render_page([MeasuredRun(result(TINY))])


def test_page_closed_loop_is_labelled() -> None:
    run = result(TINY)
    assert "queueing of a slow target does not show" not in render_page([MeasuredRun(run)])
    run.mode = Mode.CLOSED
    assert "queueing of a slow target does not show" in render_page([MeasuredRun(run)])


def test_page_has_definitions_command_and_machine() -> None:
    run = result(TINY)
    text = Skeleton(render_page([MeasuredRun(run)])).text
    assert "(tn - t1) / (n - 1) for n >= 2 in two chunks or more, else undefined" in text
    assert run.command in text
    assert all(value in text for value in run.machine.values())


def test_page_sweep_is_drawn_over_its_load() -> None:
    """From three runs of different loads on; charts of single runs are folded."""
    runs = [MeasuredRun(result(Scenario(n=60, rps=rps), label=f"{rps}/s")) for rps in (5, 10, 20)]
    html = render_page(runs)
    assert "Against the load" in html
    assert html.count("<details>") == 3
    assert "Against the load" not in render_page([runs[0], runs[1]])


@pytest.mark.parametrize("scenario", [Scenario(n=0), Scenario(n=1), Scenario(n=1, error_share=1.0),
                                      Scenario(n=40, error_share=1.0), Scenario(n=40, n_output=1)])
def test_page_run_with_few_samples_is_rendered(scenario: Scenario) -> None:
    """No request, one, and only failures: no invented figure, no NaN."""
    html = render_page([MeasuredRun(result(scenario))])
    assert not re.search(r'"(?:[^"]*[ ,ML])?(?:nan|inf)[" ,]', html)


def test_page_error_and_stage_names_are_text() -> None:
    run = result(Scenario(n=200))
    run.samples.server_timings = ["a&b'!;dur=1"] * 200
    run.samples.errors[3] = Error.MALFORMED
    assert "a&amp;b&#x27;!" in render_page([MeasuredRun(run)])


def test_page_without_a_run_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        render_page([])


def test_page_of_a_long_run_is_small() -> None:
    """30,000 requests are hardly larger than a few thousand, since all is binned."""
    assert len(render_page([MeasuredRun(result(Scenario(n=30_000, rps=100)))])) < 700_000


@given(st.lists(st.floats(allow_infinity=True, allow_nan=True), max_size=20))
def test_scale_includes_its_values(values: list[float]) -> None:
    held = [abs(value) for value in values if abs(value) < 1e12]
    for scale in (log_scale(held, 0, 100), linear_scale(held, 0, 100)):
        assert all(0 <= scale.pixel(value) <= 100 for value in held)
        assert all(scale.low * 0.999 <= mark <= scale.high * 1.001 for mark in make_ticks(scale))
        assert 1 <= len(make_ticks(scale)) <= 9


def test_scale_without_a_range_is_refused() -> None:
    for wrong in ((1.0, 1.0, False), (0.0, 1.0, True), (nan, 1.0, False)):
        with pytest.raises(ValueError, match="no scale"):
            AxisScale(wrong[0], wrong[1], 0, 1, is_log=wrong[2])


def test_interval_chart_labels_stay_apart_and_inside() -> None:
    """Ratios of 20 and 200 keep their place, and their labels end inside the page."""
    a = MeasuredRun(result(TINY))
    drawn = []
    for factor in (20, 200):
        slow = replace(TINY, ttft_s=TINY.ttft_s * factor, token_s=TINY.token_s * factor)
        shown = charts.interval_chart(compare_runs(a, MeasuredRun(result(slow)), Random(1), CompareConfig(n_replicates=100)))
        points = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', shown)]
        words = [(float(x), text) for x, text in re.findall(r'<text x="([\d.]+)"[^>]* class="tick \w+-word">([^<]*)', shown)]
        assert len(points) == len(words) > 10
        assert all(x + 7 * len(text) < WIDE for x, text in words)
        assert max(points) < WIDE - charts.TEXT_WIDTH
        drawn.append(re.findall(r">([\d.]+)x<", shown))
    assert all("1" in ticks and 2 <= len(ticks) <= 7 for ticks in drawn)
    assert float(drawn[0][-1]) >= 9
    assert float(drawn[1][-1]) >= 100


def test_axes_have_round_ticks() -> None:
    assert [format_instant(at_s) for at_s in (0, 0.5, 12, 90, 5400)] == ["0", "0.5 s", "12 s", "1:30", "1:30 h"]
    assert [format_tick_s(value) for value in (0.0005, 0.05, 2.0, 0.0)] == ["500 us", "50 ms", "2 s", "0"]
    assert [format_tick_count(value) for value in (12_000, 3, 2.5e6)] == ["12k", "3", "2.5M"]
    assert make_time_ticks(100) == [0, 15, 30, 45, 60, 75, 90]
    assert [format_number(value) for value in (1.0, 1.25, 10.06)] == ["1", "1.2", "10.1"]
