"""Numbers in one form, however they are written.

Problem: 1,200 EUR, 1200 euros, EUR 1.200 and €1.2k are one amount; 512 MB and 512 GB are not. Rule: a number is the set of
values that its digits can mean, and a unit: a dimension with a factor to its base.

    1,200   {1200, 1.2}: a separator before three last digits is of thousands or a decimal point
    30 s = 0.5 min; 1.5 GB = 1500 MB; 2 years = 24 months; 40 % = 40 percent
    2026-11-24 = 24 Nov 2026 = November 24, 2026; a date without a year equals that day of any year

Source: SI and IEC prefixes, ISO 8601; the forms that people write are ours.
When wrong: of 11/12/2026 both readings count, so that a day and a month in exchange are not seen; `5 m` may be minutes.
"""

import re
from typing import Final, NamedTuple

_SI: Final = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_UNITS: Final[dict[str, tuple[str, float]]] = {
    "%": ("%", 1), "percent": ("%", 1), "pct": ("%", 1), "prozent": ("%", 1), "pour cent": ("%", 1), "per cent": ("%", 1),
    "por ciento": ("%", 1), "ns": ("time", 1e-9), "us": ("time", 1e-6), "µs": ("time", 1e-6), "ms": ("time", 1e-3),
    "millisecond": ("time", 1e-3), "s": ("time", 1), "sec": ("time", 1), "second": ("time", 1), "sekunde": ("time", 1),
    "seconde": ("time", 1), "segundo": ("time", 1), "min": ("time", 60), "minute": ("time", 60), "minuto": ("time", 60),
    "h": ("time", 3600), "hr": ("time", 3600), "hour": ("time", 3600), "stunde": ("time", 3600), "heure": ("time", 3600),
    "hora": ("time", 3600), "d": ("time", 86400), "day": ("time", 86400), "tag": ("time", 86400), "jour": ("time", 86400),
    "día": ("time", 86400), "week": ("time", 604800), "woche": ("time", 604800), "semaine": ("time", 604800),
    "semana": ("time", 604800), "month": ("month", 1), "monat": ("month", 1), "mois": ("month", 1), "mes": ("month", 1),
    "year": ("month", 12), "yr": ("month", 12), "jahr": ("month", 12), "an": ("month", 12), "año": ("month", 12),
    "b": ("byte", 1), "byte": ("byte", 1), "kib": ("byte", 2**10), "mib": ("byte", 2**20), "gib": ("byte", 2**30),
    "tib": ("byte", 2**40), "mbit": ("bit", 1e6), "gbit": ("bit", 1e9), "mbps": ("bit", 1e6), "gbps": ("bit", 1e9),
    "mg": ("mass", 1e-3), "g": ("mass", 1), "kg": ("mass", 1e3), "kilo": ("mass", 1e3), "kilogram": ("mass", 1e3),
    "ton": ("mass", 1e6), "tonne": ("mass", 1e6), "lb": ("pound", 1), "mm": ("length", 1e-3), "cm": ("length", 1e-2),
    "metre": ("length", 1), "meter": ("length", 1), "km": ("length", 1e3), "kilometre": ("length", 1e3),
    "kilometer": ("length", 1e3), "mile": ("mile", 1), "ml": ("volume", 1e-3), "l": ("volume", 1), "litre": ("volume", 1),
    "liter": ("volume", 1), "m²": ("area", 1), "sqm": ("area", 1), "°c": ("celsius", 1), "°f": ("fahrenheit", 1),
    "w": ("power", 1), "kw": ("power", 1e3), "mw": ("power", 1e6), "kwh": ("energy", 1), "mwh": ("energy", 1e3),
    "v": ("volt", 1), "mah": ("charge", 1), "hz": ("hertz", 1), "khz": ("hertz", 1e3), "mhz": ("hertz", 1e6),
    "ghz": ("hertz", 1e9), "rps": ("rate", 1), "req/s": ("rate", 1), "qps": ("rate", 1), "px": ("pixel", 1),
    "$": ("USD", 1), "usd": ("USD", 1), "dollar": ("USD", 1), "us$": ("USD", 1), "€": ("EUR", 1), "eur": ("EUR", 1),
    "euro": ("EUR", 1), "£": ("GBP", 1), "gbp": ("GBP", 1), "pound": ("GBP", 1), "¥": ("JPY", 1), "jpy": ("JPY", 1),
    "yen": ("JPY", 1), "chf": ("CHF", 1), "franken": ("CHF", 1), "inr": ("INR", 1), "₹": ("INR", 1), "rupee": ("INR", 1),
    "sek": ("SEK", 1), "kr": ("SEK", 1), "pln": ("PLN", 1), "brl": ("BRL", 1), "cent": ("cent", 1), "m": ("?", 1),
    **{f"{prefix}b": ("byte", factor) for prefix, factor in _SI.items()},
    **{name: ("byte", _SI[name[0]]) for name in ("kilobyte", "megabyte", "gigabyte", "terabyte")},
}
_PLURALS: Final = ("s", "en", "n", "e")
_SCALES: Final = {"k": 1e3, "thousand": 1e3, "tausend": 1e3, "mille": 1e3, "mil": 1e3, "million": 1e6, "millionen": 1e6,
                  "mio": 1e6, "mn": 1e6, "billion": 1e9, "bn": 1e9}
CURRENCIES: Final = r"US\$|[$€£¥₹]|(?:USD|EUR|GBP|JPY|CHF|INR|SEK|PLN|BRL)\b"
MONTHS: Final = {name: n for n, names in enumerate((
    "jan january januar janvier enero", "feb february februar février febrero", "mar march märz mars marzo",
    "apr april avril abril", "may mai mayo", "jun june juni juin junio", "jul july juli juillet julio",
    "aug august août agosto", "sep sept september septembre septiembre", "oct october oktober octobre octubre",
    "nov november novembre noviembre", "dec december dezember décembre diciembre"), 1) for name in names.split()}
WORD_NUMBERS: Final = {word: float(n) for n, words in enumerate((
    "zero null", "one", "two zwei deux dos", "three drei trois tres", "four vier quatre cuatro", "five fünf cinq cinco",
    "six sechs seis", "seven sieben sept siete", "eight acht huit ocho", "nine neun neuf nueve", "ten zehn dix diez",
    "eleven elf onze once", "twelve zwölf douze doce")) for word in words.split()} | {
    "fifteen": 15.0, "twenty": 20.0, "thirty": 30.0, "forty": 40.0, "fifty": 50.0, "sixty": 60.0, "ninety": 90.0}
_DIGITS: Final = re.compile(r"\d+")


class Quantity(NamedTuple):
    """A number. `values`: what its digits can mean. `dimension`: empty without a unit; `?` if the unit is ambiguous."""

    values: frozenset[float]
    dimension: str = ""
    factor: float = 1.0

    def equals(self, other: "Quantity") -> bool:
        """Whether both are one amount, if they have units at all."""
        if not self.dimension or not other.dimension or "?" in (self.dimension, other.dimension):
            return not self.values.isdisjoint(other.values)
        if self.dimension != other.dimension:
            return False
        if self.factor == other.factor:
            return not self.values.isdisjoint(other.values)
        mine = {value * self.factor for value in self.values}
        return any(abs(value * other.factor - one) <= 1e-9 * abs(one) for value in other.values for one in mine)

    def lacks_unit_of(self, other: "Quantity") -> bool:
        """Whether the other one has a unit, and this one has none."""
        return not self.dimension and other.dimension not in ("", "?")


def read_unit(text: str) -> tuple[str, float] | None:
    """Dimension and factor of a unit; None for another word."""
    word = text.lower().strip(". ")
    if word in _UNITS:
        return _UNITS[word]
    for plural in _PLURALS:
        stem = word.removesuffix(plural)
        if stem is not word and len(stem) > 2 and stem in _UNITS:
            return _UNITS[stem]
    return None


def read_quantity(digits: str, scale: str = "", unit: str = "") -> Quantity:
    """A number of digits and separators. `scale`: k, million, ...; empty: 1."""
    factor = 1e6 if scale == "M" else _SCALES.get(scale.lower().strip(". "), 1.0)
    values = frozenset(round(value * factor, 9) for value in _read_values(digits))
    found = read_unit(unit) if unit else None
    return Quantity(values, *found) if found is not None else Quantity(values)


def _read_values(digits: str) -> set[float]:
    parts = _DIGITS.findall(digits)
    sign = -1.0 if digits.startswith(("-", "\u2212")) else 1.0
    if len(parts) == 1:
        return {sign * float(parts[0])}
    values = set()
    separators = {mark for mark in digits if not mark.isdigit() and mark not in "-\u2212"}
    if all(len(part) == 3 for part in parts[1:]) and len(separators) == 1:
        values.add(sign * float("".join(parts)))
    if len(parts) == 2 and separators <= {".", ","}:
        values.add(sign * float(".".join(parts)))
    elif len(separators) > 1:
        values.add(sign * float("".join(parts[:-1]) + "." + parts[-1]))
    return values or {sign * float("".join(parts))}


def read_dates(text: str) -> frozenset[str]:
    """The days that a text can mean, as `2026-11-24` or `--11-24` without a year."""
    parts = re.findall(r"\d+|[^\W\d_]+", text)
    month = next((MONTHS[part.lower()] for part in parts if part.lower() in MONTHS), None)
    numbers = [part for part in parts if part.isdigit()]
    years = [part for part in numbers if len(part) == 4]
    days = [int(part) for part in numbers if len(part) < 3]
    year = years[0] if years else ""
    if month is not None:
        return frozenset(f"{year or '-'}-{month:02}-{day:02}" for day in days[:1])
    if not year and len(days) == 3:
        year, days = f"20{days[2]:02}", days[:2]
    if len(days) < 2:
        return frozenset()
    first, second = days[:2]
    if text[:4].isdigit():
        return frozenset((f"{year}-{first:02}-{second:02}",))
    return frozenset(f"{year or '-'}-{one:02}-{other:02}" for one, other in ((first, second), (second, first)) if one <= 12)


def is_same_date(dates: frozenset[str], others: frozenset[str]) -> bool:
    """Whether two texts can mean one day."""
    if not dates.isdisjoint(others):
        return True
    return any(one[-5:] == other[-5:] and "-" in (one[0], other[0]) for one in dates for other in others)
