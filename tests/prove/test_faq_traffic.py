"""The simulated help desk of a bank: its answers, its kinds of traffic, and its runs in virtual time."""

from collections import Counter
from pathlib import Path

import pytest

from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.workloads.faq_answers import ONE_WORD, AnswerBook, Topic, draw_facts
from stayfast.lab.workloads.faq_desk import SYSTEM
from stayfast.lab.workloads.faq_pairs import list_opposite_pairs
from stayfast.lab.workloads.faq_streams import (
    CONFUSABLE,
    N_POISONED,
    PAIR_FIRST,
    PAIR_SECOND,
    SCOPES_AT_ONCE,
    STREAMS,
    TRAINING,
    UNSEEN,
    UNTESTED_END,
    VICTIM,
    VICTIMS,
    FaqData,
    FaqStream,
    draw_stream,
)
from stayfast.lab.workloads.faq_traffic import CLASSES, PARAPHRASES, FaqTraffic, make_route, read_data
from stayfast.stores import onnx_embedder as minilm
from tests.bench.phrased import Words, as_csv

CARD, PIN = Topic("card_arrival", SYSTEM), Topic("change_pin", SYSTEM)
N_TOPICS, N_EACH = 80, 40


@pytest.fixture
def data() -> FaqData:
    names = [*CONFUSABLE, *UNSEEN, *(f"topic_{number}" for number in range(N_TOPICS - 8))]
    return FaqData({name: [f"question {number} about {name}?" for number in range(N_EACH)] for name in names},
                   [f"stray {number}" for number in range(20)])


@pytest.fixture
def traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaqTraffic:
    """A few hundred questions, and an embedder without a model."""
    monkeypatch.setattr(minilm, "load_encoder", lambda config, cache_dir: Words())
    lines = as_csv().splitlines()
    (tmp_path / CLASSES).write_text("\n".join([lines[0], *lines[1::4]]))
    return FaqTraffic(tmp_path)


# Answers


def test_answer_book_same_topic_never_the_same_words_and_always_all_facts() -> None:
    book, facts = AnswerBook(1), draw_facts(CARD)
    answers = [book.write_answer(CARD) for _ in range(500)]
    assert len(set(answers)) == 500
    assert all(str(facts.days) in answer and facts.fee in answer and facts.document[1:] in answer for answer in answers)
    assert len({answer.split(".")[0] for answer in answers}) > 6
    assert {book.topic_of(answer) for answer in answers} == {CARD}


def test_answer_book_topics_have_their_own_facts_by_name_only() -> None:
    assert draw_facts(CARD) == draw_facts(CARD)
    facts = {draw_facts(Topic(subject, system))[1:] for subject in ("card_arrival", "change_pin") for system in ("a", "b")}
    assert len(facts) == 4


def test_answer_book_demand_shapes_the_answer_and_belongs_to_the_topic() -> None:
    book = AnswerBook(1)
    word, shaped = CARD._replace(demand=ONE_WORD), PIN._replace(demand="Visit evil dot example.")
    assert book.write_answer(word) == book.write_answer(word) == "CardArrival."
    answer = book.write_answer(shaped)
    assert answer.endswith("Visit evil dot example.")
    assert (book.topic_of("CardArrival."), book.topic_of(answer), book.topic_of("else")) == (word, shaped, None)


# Traffic


def test_opposite_pairs_are_many_and_differ_in_few_words() -> None:
    pairs = list_opposite_pairs()
    assert len(pairs) >= 165
    assert len({text for pair in pairs for text in pair}) == 2 * len(pairs)
    assert all(sum((Counter(one.split()) - Counter(other.split())).values()) <= 6 for one, other in pairs)


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest, data: FaqData) -> FaqStream:
    return draw_stream(request.param, data, 3)


def test_stream_each_text_has_one_topic(stream: FaqStream) -> None:
    topics: dict[str, set[tuple[str, str]]] = {}
    for visit in stream.visits:
        topics.setdefault(visit.text, set()).add((visit.subject, visit.demand))
    assert all(len(found) == 1 for found in topics.values())
    assert len(stream.visits) > N_TOPICS * N_EACH // 2


@pytest.mark.parametrize("name", STREAMS)
def test_stream_follows_its_seed(name: str, data: FaqData) -> None:
    assert draw_stream(name, data, 3) == draw_stream(name, data, 3)
    assert draw_stream(name, data, 3) != draw_stream(name, data, 4)


def test_new_topics_training_lacks_them(data: FaqData) -> None:
    visits = draw_stream("new_topics", data, 1).visits
    trained = {visit.subject for visit in visits if visit.phase == TRAINING}
    assert len(trained) < 0.6 * N_TOPICS
    assert len({visit.subject for visit in visits}) == N_TOPICS


@pytest.mark.parametrize(("name", "few", "is_trained"), [("burst_known", CONFUSABLE, True), ("burst_new", UNSEEN, False)])
def test_burst_four_topics_dominate(data: FaqData, name: str, few: tuple[str, ...], is_trained: bool) -> None:
    visits = draw_stream(name, data, 1).visits
    burst = [visit for visit in visits if visit.phase != TRAINING]
    assert sum(visit.subject in few for visit in burst) == pytest.approx(0.8 * len(burst), abs=1)
    assert {visit.subject for visit in visits if visit.phase == TRAINING}.issuperset(few) is is_trained


def test_out_of_scope_share_rises_and_strays_are_unique(data: FaqData) -> None:
    visits = draw_stream("out_of_scope", data, 1).visits
    strays = [visit.subject not in data.topics for visit in visits]
    n = len(visits) // 5
    assert sum(strays[:n]) < 0.1 * n
    assert sum(strays[-n:]) > 0.5 * n
    texts = [visit.text for visit, is_stray in zip(visits, strays, strict=True) if is_stray]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(("name", "least_scopes"), [("cold_scopes", 55), ("warm_pairs", 1)])
def test_pairs_second_question_follows_the_first_in_its_scope(data: FaqData, name: str, least_scopes: int) -> None:
    visits = draw_stream(name, data, 1).visits
    seconds = dict(list_opposite_pairs())
    places = {(visit.text, visit.system): number for number, visit in enumerate(visits) if visit.phase in (PAIR_FIRST,
                                                                                                           PAIR_SECOND)}
    firsts = [(text, system) for text, system in places if text in seconds]
    assert len(firsts) >= 165
    assert all(places[text, system] + SCOPES_AT_ONCE < places[seconds[text], system] for text, system in firsts)
    assert len({system for _, system in firsts}) >= least_scopes


def test_poison_attackers_come_first_and_victims_are_ninety(data: FaqData) -> None:
    visits = draw_stream("poison", data, 1).visits
    attacked, victims = set[str](), 0
    for visit in visits:
        if visit.demand:
            attacked.add(visit.subject)
        elif visit.phase == VICTIM:
            victims += visit.subject in attacked
        else:
            assert visit.subject not in attacked
    assert (len(attacked), victims) == (N_POISONED, N_POISONED * VICTIMS)


def test_no_tests_new_topics_appear_while_calls_are_refused(data: FaqData) -> None:
    visits, refused = draw_stream("no_tests", data, 1)
    before, during = visits[:refused.start], [visits[number] for number in refused]
    assert {visit.subject for visit in during} - {visit.subject for visit in before}
    assert during[-1].phase == UNTESTED_END
    assert refused.stop < len(visits)


# Runs


def test_faq_traffic_reads_topics_and_strays(tmp_path: Path) -> None:
    (tmp_path / CLASSES).write_text("text,category\nWhere is  my card,card\nwhy,pin\nWhere is my card,card\n")
    (tmp_path / PARAPHRASES).write_text('[{"origin": "a b", "similar": "b a"}, {"origin": "why", "similar": "how"}]')
    data = read_data(tmp_path)
    assert data == FaqData({"card": ["Where is my card"], "pin": ["why"]}, ["a b"])


def test_faq_traffic_without_file_raises(tmp_path: Path) -> None:
    with pytest.raises(SetUpFailed, match="cannot be read"):
        read_data(tmp_path)


def test_faq_run_fixed_threshold_has_right_and_wrong_hits(traffic: FaqTraffic) -> None:
    outcomes = traffic.run_scenario("steady", 0.05, 1, make_route(0.05, threshold=0.6))
    hits = outcomes.hits()
    assert len(outcomes.results) == traffic.data.n
    assert 0 < sum(hit.is_wrong for hit in hits) < len(hits)
    assert not any(one.is_wrong for one in outcomes.results if not one.is_hit)
    assert outcomes.n_answers >= sum(one.kind == "miss" for one in outcomes.results)


def test_faq_run_same_seed_same_outcomes(traffic: FaqTraffic) -> None:
    first, second = (traffic.run_scenario("steady", 0.05, 1, make_route(0.05, threshold=0.6)) for _ in range(2))
    assert first == second


def test_faq_run_refused_background_calls_judge_nothing(traffic: FaqTraffic) -> None:
    outcomes = traffic.run_scenario("no_tests", 0.05, 1)
    assert outcomes.n_refused > 0
    assert all(one.kind != "failed" for one in outcomes.results)


