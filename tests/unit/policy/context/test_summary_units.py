"""Numbers, units and dates in one form."""

import pytest

from stayfast.policy.context.summary_units import is_same_date, read_dates, read_quantity, read_unit


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("1,200",), ("1200",)),
        (("1.200",), ("1,200",)),
        (("1 200",), ("1200",)),
        (("1'200.50",), ("1,200.5",)),
        (("1.5", "k"), ("1500",)),
        (("1.2", "million"), ("1,200,000",)),
        (("30", "", "s"), ("0.5", "", "minutes")),
        (("40", "", "%"), ("40", "", "percent")),
        (("1.5", "", "GB"), ("1500", "", "MB")),
        (("2", "", "years"), ("24", "", "months")),
        (("1200", "", "EUR"), ("1,200", "", "euros")),
        (("12,5",), ("12.5",)),
        (("5", "", "m"), ("5", "", "minutes")),
    ],
)
def test_quantity_forms_of_one_amount_are_equal(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Separators, scales and units of one dimension."""
    assert read_quantity(*one).equals(read_quantity(*other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("512", "", "MB"), ("512", "", "GB")),
        (("512",), ("500",)),
        (("30", "", "s"), ("30", "", "EUR")),
        (("5",), ("-5",)),
        (("12.5",), ("12.4",)),
        (("1,200.50",), ("1200",)),
    ],
)
def test_quantity_other_amounts_are_not_equal(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Another value, another unit, another sign."""
    assert not read_quantity(*one).equals(read_quantity(*other))


def test_quantity_lacks_unit_of_another() -> None:
    """A bare number equals one with a unit, and lacks it."""
    bare, whole = read_quantity("512"), read_quantity("512", "", "MB")
    assert bare.equals(whole)
    assert bare.lacks_unit_of(whole)
    assert not whole.lacks_unit_of(bare)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-24",
        "24 Nov 2026",
        "November 24, 2026",
        "24. November 2026",
        "24.11.2026",
        "11/24/2026",
        "24 noviembre 2026",
        "Nov 24",
    ],
)
def test_read_dates_of_one_day(text: str) -> None:
    """ISO, English, German, Spanish, American; without a year it is that day of any year."""
    assert is_same_date(read_dates(text), read_dates("2026-11-24"))
    assert not is_same_date(read_dates(text), read_dates("2026-11-25"))


@pytest.mark.parametrize(("word", "dimension"), [("seconds", "time"), ("Sekunden", "time"), ("EUR", "EUR"), ("racks", None)])
def test_read_unit_plurals_and_other_words(word: str, dimension: str | None) -> None:
    """A noun is no unit."""
    found = read_unit(word)
    assert (found[0] if found is not None else None) == dimension
