"""The tables behind the word rules."""

from stayfast.policy.cache.english_kinds import CASED, DIRECTED, KINDS, LINKERS, NEAR, PHRASES, REVERSED, STRICT, SYNONYMS


def test_english_kinds_are_all_used() -> None:
    """A kind that no word has would never apply."""
    assert set(KINDS.values()) >= STRICT | NEAR
    assert DIRECTED <= LINKERS
    assert REVERSED.keys() <= DIRECTED


def test_english_synonyms_lead_to_the_first_word_of_their_group() -> None:
    """No chains: a term is the term of itself."""
    assert [word for word, first in SYNONYMS.items() if SYNONYMS[first] != first] == []


def test_english_synonyms_are_no_two_members_of_a_kind() -> None:
    """Synonyms of a kind would never differ."""
    assert {word: first for word, first in SYNONYMS.items()
            if word != first and word in KINDS and first in KINDS and KINDS[word] != KINDS[first]} == {}


def test_english_phrases_and_cased_words_are_readable() -> None:
    """Phrases are in lower case, as words are; cased words have a capital."""
    assert [first for first, seconds in PHRASES.items() if not first.islower() or not all(map(str.islower, seconds))] == []
    assert [word for word in CASED if word.islower()] == []
