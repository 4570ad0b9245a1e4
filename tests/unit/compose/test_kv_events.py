"""The readers of KV events that settings ask for, and what a reload keeps of them."""

import asyncio

import pytest

from stayfast.compose.kv_events import (
    KvEvents,
    KvEventTasks,
    kv_event_counts,
    kv_event_findings,
    kv_event_gauges,
    make_kv_events,
)
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.testing import SimLoop, run

EVENTS = 'kv_events: {endpoint: "tcp://127.0.0.1:5557", replay: "tcp://127.0.0.1:5558"}'


def settings_of(a: str = EVENTS, b: str = "probe: true") -> Settings:
    text = "\n".join(["upstreams:", f'  a: {{kind: vllm, base_url: "http://a/v1", {a}}}',
                      f'  b: {{kind: vllm, base_url: "http://b/v1", models: {{m: other}}, {b}}}',
                      "routes: {m: {upstreams: [a, b], affinity: {mode: prefix}}}"])
    return load_settings(SettingsText("test", text), {})


def test_make_kv_events_only_upstreams_with_the_setting_are_read() -> None:
    async def main(loop: SimLoop) -> None:
        assert make_kv_events(settings_of(a="probe: true"), None, loop) is None
        events = make_kv_events(settings_of(), None, loop)
        assert events is not None
        assert list(events.readers) == list(events.exact.caches) == ["a"]
        assert events.tokenizers["a"].model_of("m") == "m"
        both = make_kv_events(settings_of(b=EVENTS), None, loop)
        assert both is not None
        assert both.tokenizers["b"].model_of("m") == "other"

    run(main)


def test_make_kv_events_reload_keeps_the_index_of_unchanged_upstreams() -> None:
    async def main(loop: SimLoop) -> None:
        before, after = settings_of(b=EVENTS), settings_of(b=EVENTS.replace("5557", "6557"))
        events = make_kv_events(before, None, loop)
        assert events is not None
        new = make_kv_events(after, (before, events), loop)
        assert new is not None
        assert new.exact is events.exact
        assert new.readers["a"] is events.readers["a"]
        assert new.readers["b"] is not events.readers["b"]
        assert new.exact.caches["b"].held is new.readers["b"].order.index
        assert make_kv_events(settings_of(a="probe: true"), (after, new), loop) is None

    run(main)


def test_tasks_of_unchanged_readers_go_on_over_a_reload() -> None:
    async def main(loop: SimLoop) -> None:
        before = settings_of(b=EVENTS)
        events = make_kv_events(before, None, loop)
        assert events is not None
        started: list[asyncio.Task[None]] = []

        def spawn(work: object) -> asyncio.Task[None]:
            assert asyncio.iscoroutine(work)
            work.close()
            started.append(asyncio.create_task(asyncio.sleep(1000)))
            return started[-1]

        tasks = KvEventTasks(spawn)
        tasks.begin(events)
        assert len(started) == 3  # two readers, and the learner
        after = settings_of()
        tasks.begin(make_kv_events(after, (before, events), loop))
        await asyncio.sleep(0.1)
        assert [task.cancelled() for task in started] == [False, True, False]
        tasks.begin(None)
        await asyncio.sleep(0.1)
        assert all(task.cancelled() for task in started)

    run(main)


def test_rows_of_events_have_state_and_counts() -> None:
    async def main(loop: SimLoop) -> None:
        events = make_kv_events(settings_of(), None, loop)
        assert isinstance(events, KvEvents)
        gauges, counts = kv_event_gauges(events, loop.now()), kv_event_counts(events)
        assert gauges["stayfast_kv_event_state"] == [(("a",), 0.0)]
        assert gauges["stayfast_kv_event_age_seconds"] == []
        assert counts["stayfast_kv_events_total"] == [(("a", "applied"), 0), (("a", "malformed"), 0)]
        assert kv_event_findings(events, loop) == []
        await asyncio.sleep(100)
        assert [finding.id for finding in kv_event_findings(events, loop)] == ["engine.kv_events_lost"]
        assert kv_event_gauges(None, 0.0) == kv_event_counts(None) == {}

    run(main)


@pytest.mark.parametrize(("settings", "message"), [
    ('kv_events: {endpoint: "tcp://*:5557"}', "endpoint"), ("kv_events: {}", "endpoint"),
    ('kv_events: {endpoint: "tcp://a:1", replays: "tcp://a:2"}', "replay")])
def test_settings_wrong_kv_events_names_the_field(settings: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings_of(a=settings)


def test_settings_kv_events_of_a_hosted_api_are_refused() -> None:
    text = f'upstreams: {{a: {{kind: openai, key: "k", {EVENTS}}}}}\nroutes: {{m: [a]}}'
    with pytest.raises(SettingsError, match="kv_events: must be unset"):
        load_settings(SettingsText("test", text), {})
