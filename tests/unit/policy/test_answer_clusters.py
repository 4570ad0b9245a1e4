"""policy.cache.answer_clusters: phrasings, answers and probation."""

from collections.abc import Sequence
from math import log1p

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.cache.answer_clusters import PRIOR_N, PRIOR_WRONG, PROBATION, AnswerVotes
from stayfast.policy.cache.lexical import parse_wording

WORDING = parse_wording("a question")


def test_answer_votes_many_phrasings_share_an_answer() -> None:
    """Neighbours come with their answers; removed phrasings are left out."""
    votes = AnswerVotes()
    for key, answer in ((1, 7), (2, 7), (3, 8)):
        assert votes.add(key, answer, WORDING) is None
    assert [(one.key, one.answer, one.cosine) for one in votes.find_neighbours([(3, 0.9), (9, 0.8), (1, 0.7)])] == [
        (3, 8, 0.9), (1, 7, 0.7)]
    assert (len(votes), votes.n_answers) == (3, 2)
    assert sorted(votes.forget(7)) == [1, 2]
    assert votes.forget(7) == []
    assert (len(votes), votes.n_answers) == (1, 1)


def test_answer_votes_keep_last_phrasings() -> None:
    """The oldest phrasing is dropped, and its key is returned."""
    votes = AnswerVotes(n_per_answer=2)
    assert [votes.add(key, 7, WORDING) for key in (1, 2, 3, 4)] == [None, None, 1, 2]
    assert not votes.remove(3)
    assert votes.remove(4)
    assert not votes.remove(4)
    assert votes.n_answers == 0


def test_answer_votes_confirmed_error_starts_probation() -> None:
    """Only of what was given; it ends after so many right ones running, and begins again with a wrong one."""
    votes = AnswerVotes()
    votes.add(1, 7, WORDING)
    votes.record_judgement(7, is_right=False, was_given=False)
    assert not votes.is_on_probation(7)
    votes.record_judgement(7, is_right=False, was_given=True)
    for _ in range(PROBATION - 1):
        votes.record_judgement(7, is_right=True, was_given=False)
    votes.record_judgement(7, is_right=False, was_given=False)
    for _ in range(PROBATION - 1):
        votes.record_judgement(7, is_right=True, was_given=False)
    assert votes.is_on_probation(7)
    assert not votes.is_on_probation(8)
    votes.record_judgement(7, is_right=True, was_given=False)
    assert not votes.is_on_probation(7)


def test_answer_votes_forgotten_answer_has_no_probation() -> None:
    """Neither one that was, nor one that is judged when it is gone already."""
    votes = AnswerVotes()
    votes.add(1, 7, WORDING)
    votes.record_judgement(7, is_right=False, was_given=True)
    votes.forget(7)
    votes.record_judgement(7, is_right=False, was_given=True)
    assert not votes.is_on_probation(7)


@given(st.lists(st.tuples(st.sampled_from("arf"), st.integers(0, 8)), max_size=60))
def test_answer_votes_random_steps_stay_consistent(steps: Sequence[tuple[str, int]]) -> None:
    """After any steps, every phrasing has an answer, and no answer has more than its share."""
    votes, keys, key = AnswerVotes(n_per_answer=3), dict[int, int](), 0
    for step, number in steps:
        if step == "a":
            key += 1
            gone = votes.add(key, number, WORDING)
            keys[key] = number
            if gone is not None:
                del keys[gone]
        elif step == "r" and keys:
            chosen = sorted(keys)[number % len(keys)]
            was_last = list(keys.values()).count(keys[chosen]) == 1
            assert votes.remove(chosen) is was_last
            del keys[chosen]
        elif step == "f":
            assert sorted(votes.forget(number)) == sorted(one for one, answer in keys.items() if answer == number)
            keys = {one: answer for one, answer in keys.items() if answer != number}
    assert {one.key: one.answer for one in votes.find_neighbours((one, 1.0) for one in range(key + 1))} == keys
    assert votes.n_answers == len(set(keys.values()))


def test_answer_votes_second_phrasing_confirms_the_answer() -> None:
    """One call may have been wrong; a second call for the same question confirms it, too."""
    votes = AnswerVotes()
    votes.add(1, 7, WORDING)
    votes.add(2, 8, WORDING)
    assert not votes.is_confirmed(7)
    votes.add(3, 7, WORDING)
    votes.confirm(8)
    votes.confirm(9)
    assert (votes.is_confirmed(7), votes.is_confirmed(8), votes.is_confirmed(9)) == (True, True, False)
    votes.forget(7)
    votes.add(4, 7, WORDING)
    assert not votes.is_confirmed(7)


def test_answer_votes_new_word_share_weighs_rare_words_more() -> None:
    """The words of other answers are new to this one, and a removed phrasing takes its words along."""
    votes = AnswerVotes(fillers=frozenset(("how",)))
    for key, answer, text in ((1, 7, "how reset password"), (2, 7, "reset passwords"), (3, 8, "how close account")):
        votes.add(key, answer, parse_wording(text))
    rare, usual = log1p(4 / 1), log1p(4 / 2)
    assert votes.new_word_share(7, parse_wording("how reset a")) == rare / (rare + log1p(4 / 3))
    assert votes.new_word_share(7, parse_wording("password account")) == usual / (usual + usual)
    assert votes.new_word_share(7, parse_wording("how")) == 0.0
    votes.remove(1)
    assert votes.new_word_share(7, parse_wording("password")) == 0.0  # "passwords" is the same word
    votes.remove(2)
    assert votes.new_word_share(7, parse_wording("password")) == 1.0


def test_answer_votes_wrong_share_follows_recent_judgements() -> None:
    votes = AnswerVotes()
    votes.add(1, 7, WORDING)
    assert votes.wrong_share(7) == votes.wrong_share(9) == PRIOR_WRONG / PRIOR_N
    for _ in range(300):
        votes.record_judgement(7, is_right=True, was_given=False)
    assert votes.wrong_share(7) < 0.001
    for _ in range(50):
        votes.record_judgement(7, is_right=False, was_given=False)
    assert 0.6 < votes.wrong_share(7) < 0.7  # 1 - DECAY ** 50
