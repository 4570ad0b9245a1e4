"""The word lists of English."""

from stayfast.policy.cache.english import ENGLISH


def test_english_words_are_lower_case_without_apostrophes() -> None:
    """As `parse_wording` makes them; another word would never match."""
    listed = ENGLISH.fillers | ENGLISH.negators | ENGLISH.volatile | ENGLISH.pointing | ENGLISH.personal
    assert [word for word in listed | set(ENGLISH.opposites) | set(ENGLISH.numbers) if not word.isalpha()] == []
    assert [word for word in listed | set(ENGLISH.opposites) if word != word.lower()] == []


def test_english_opposites_are_symmetric() -> None:
    """And no word is the opposite of itself."""
    assert all(word in ENGLISH.opposites[other] and word != other
               for word, others in ENGLISH.opposites.items() for other in others)
