"""What one gateway is to the others: the digests of its settings and upstreams, and what its workers do with news."""

import os
import subprocess
import sys
from random import Random

import msgspec
import pytest

from stayfast.compose.fleet_host import NO_FLEET, Fleet, digest_sections, shared_breakers
from stayfast.compose.system import Observers, System, build
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsText, load_settings
from stayfast.testing import SimLoop, run
from stayfast.workers.fleet.records import FleetNews

TEXT = """
server: {port: 8000}
fleet: {gateway: a}
upstreams:
  near: {kind: openai, base_url: "http://example.com/v1", key: first, limit: {max: 40}}
  local: {kind: openai, base_url: "http://127.0.0.1:9/v1"}
  played: {kind: simulated}
routes:
  chat: {upstreams: [near, local], model: gpt-x}
  other: [played]
"""


def settings(text: str = TEXT) -> Settings:
    """Of this text."""
    return load_settings(SettingsText("test", text), {}, kinds=KINDS)


def system(loop: SimLoop, text: str = TEXT) -> tuple[System, Observers]:
    """One process."""
    observers = Observers(settings(text), loop)
    built = build(settings(text), observers, {}, loop, Random(1))
    observers.fleet.begin(built.settings, built.registry)
    return built, observers


def digests(text: str = TEXT) -> dict[str, str]:
    """By the upstream's name."""
    loop = SimLoop()
    loop.close()
    built, _ = system(loop, text)
    return {name: digest for digest, name, _ in shared_breakers(built.settings, built.registry)}


@pytest.mark.parametrize(("old", "new"), [("port: 8000", "port: 9000"), ("key: first", "key: second"),
                                          ("gateway: a", "gateway: b")])
def test_settings_digest_ignores_what_may_differ(old: str, new: str) -> None:
    """Secrets are not in it: a digest of a short one could be guessed."""
    assert old in TEXT
    assert digest_sections(settings(TEXT.replace(old, new))) == digest_sections(settings())


def test_settings_digest_names_the_section_that_differs() -> None:
    before, after = digest_sections(settings()), digest_sections(settings(TEXT.replace("gpt-x", "gpt-y")))
    assert {name for name in before if before[name] != after[name]} == {"routes", "all"}


def test_settings_digest_is_the_same_in_all_processes() -> None:
    """Whatever the seed of Python's hashes."""
    code = ("from tests.unit.compose.test_fleet_host import settings; from stayfast.compose.fleet_host import "
            "digest_sections; print(digest_sections(settings())['all'])")
    found = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                            env={**os.environ, "PYTHONHASHSEED": seed}).stdout.strip() for seed in ("1", "2", "3")}
    assert found == {digest_sections(settings())["all"]}


def test_upstream_digest_ignores_its_name_and_its_key() -> None:
    """Only upstreams on the network are shared; another address or model is another upstream."""
    before = digests()
    assert before.keys() == {"near", "local"}
    renamed = digests(TEXT.replace("near", "far").replace("key: first", "key: second"))
    assert renamed == {"far": before["near"], "local": before["local"]}
    assert digests(TEXT.replace("gpt-x", "gpt-y"))["near"] != before["near"]
    assert digests(TEXT.replace("example.com", "example.org"))["near"] != before["near"]


def test_upstream_digest_of_one_model_is_that_of_the_same_among_several() -> None:
    """A gateway with one route shares the breaker of a gateway with two."""
    several = TEXT + "  third: {upstreams: [near], model: gpt-z}\n"
    loop = SimLoop()
    loop.close()
    built, _ = system(loop, several)
    found = {health.model: digest for digest, name, health in shared_breakers(built.settings, built.registry)
             if name == "near"}
    assert found.keys() == {"gpt-x", "gpt-z"}
    assert found["gpt-x"] == digests()["near"]


def test_upstream_on_loopback_is_another_one_at_each_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests()
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    after = digests()
    assert after["near"] == before["near"]
    assert after["local"] != before["local"]


def test_news_of_joins_and_leaves_rescale_limits() -> None:
    """Adaptive ones, each once for each change of the number."""
    async def main(loop: SimLoop) -> None:
        built, observers = system(loop)
        limit = built.registry["near"].limit
        found = []
        for n in (1, 2, 2, 4, 2, 1):
            report = observers.fleet.part.receive(FleetNews(n))
            found.append(limit.value)
        assert found == [40, 20, 20, 10, 20, 40]
        assert (report.pid, report.in_flight, report.is_draining, report.times) == (os.getpid(), 0, False, None)
        observers.fleet.part.receive(FleetNews(2))
        observers.fleet.part.receive(FleetNews())  # of a process that does not know the number
        assert limit.value == 20
        assert observers.fleet.part.receive(FleetNews(2, {})).times == {}

    run(main)


def test_gateway_without_a_fleet_lists_itself_and_why() -> None:
    async def main(loop: SimLoop) -> None:
        _, observers = system(loop)
        listed = msgspec.json.decode(await observers.aggregate.gateways())
        (row,) = listed["data"]
        assert row["id"].startswith("a~")
        assert (row["pids"], row["answers"], listed["why_alone"]) == ([os.getpid()], True, NO_FLEET)
        assert isinstance(observers.fleet, Fleet)
        assert observers.fleet.gauges() == observers.fleet.counters() == {}

    run(main)
