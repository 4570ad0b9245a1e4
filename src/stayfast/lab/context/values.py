"""Values of facts, and the ways in which people and models write them."""

from random import Random
from typing import Final, NamedTuple

_CURRENCIES: Final = ("EUR", "USD", "GBP", "CHF")
_SIGNS: Final = {"EUR": "€", "USD": "$", "GBP": "£"}
_WORDS: Final = {"EUR": "euros", "USD": "dollars", "GBP": "pounds"}
_UNITS: Final = {
    "duration": (("ms", "milliseconds"), ("s", "seconds"), ("min", "minutes"), ("h", "hours"), ("days", "days")),
    "size": (("MB", "MB"), ("GB", "gigabytes"), ("KB", "kilobytes")),
    "percent": (("%", "percent"),),
    "distance": (("km", "kilometres"), ("miles", "miles")),
    "temperature": (("°C", "°C"), ("°F", "°F")),
}
_MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_FIRST: Final = (
    "Anna",
    "José",
    "Zoë",
    "Łukasz",
    "Priya",
    "Kenji",
    "Fatima",
    "Olivier",
    "Ingrid",
    "Tomás",
    "Aisha",
    "Wen",
    "Bogdan",
    "Maëlle",
    "Sven",
)
_LAST: Final = (
    "Schmidt",
    "Álvarez",
    "Müller",
    "Nowak",
    "Raman",
    "Satō",
    "Haddad",
    "Lefèvre",
    "Nilsen",
    "Silva",
    "Okafor",
    "Zhang",
    "Popescu",
    "Durand",
    "Bakker",
)
_DIRS: Final = ("app", "etc", "data", "services", "config", "lib", "export", "core")
_FILES: Final = ("settings", "main", "orders", "handlers", "pipeline", "report", "schema", "loader")
_ENDS: Final = ("yaml", "py", "csv", "json", "toml")
_VERBS: Final = ("compute", "load", "merge", "resolve", "collect", "split", "sign", "retry")
_NOUNS: Final = ("totals", "batches", "tokens", "rows", "headers", "chunks", "regions", "weights")
NUMERIC: Final = frozenset(
    ("money", "count", "large", "percent", "duration", "size", "distance", "temperature", "time", "date")
)
IDS: Final = frozenset(("order", "ticket", "booking", "path", "symbol", "email", "version"))


class Value(NamedTuple):
    """`number`: of numeric kinds but dates. `unit`: its sign. `text`: of other kinds; of dates YYYY-MM-DD."""

    kind: str
    number: float = 0.0
    unit: str = ""
    text: str = ""


def make_value(kind: str, rng: Random) -> Value:
    """A value that is not round, so that it can be rounded."""
    match kind:
        case "money":
            number = rng.choice(
                (
                    rng.randint(101, 999),
                    rng.randint(1001, 9899),
                    rng.randint(1001, 99_899) + 0.45,
                    rng.randint(11, 98) + 0.95,
                )
            )
            return Value(kind, float(number), rng.choice(_CURRENCIES))
        case "count":
            return Value(kind, float(rng.randint(11, 989)))
        case "large":
            return Value(kind, float(rng.randint(10_001, 9_876_543)))
        case "percent":
            return Value(kind, rng.choice((float(rng.randint(11, 98)), rng.randint(11, 989) / 10)), "%")
        case "distance" | "size" | "duration":
            return Value(kind, float(rng.randint(11, 899)), rng.choice(_UNITS[kind])[0])
        case "temperature":
            return Value(kind, rng.randint(-399, 989) / 10, rng.choice(("°C", "°F")))
        case "time":
            return Value(kind, float(rng.randint(7, 21) * 60 + rng.choice((5, 10, 15, 20, 25, 35, 40, 50, 55))))
        case "date":
            return Value(kind, text=f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}")
    return Value(kind, text=_make_text(kind, rng))


def _make_text(kind: str, rng: Random) -> str:
    match kind:
        case "order":
            return rng.choice((f"{rng.randint(1000, 9999)}-{rng.choice('KXYZ')}", f"ORD-{rng.randint(10_000, 99_999)}"))
        case "ticket":
            return rng.choice((f"PAY-{rng.randint(100, 9999)}", f"#{rng.randint(1000, 9999)}"))
        case "booking":
            return "".join(rng.choice("ABCDEFGHJK") for _ in range(3)) + f"{rng.randint(100, 999)}"
        case "path":
            return f"/{rng.choice(_DIRS)}/{rng.choice(_DIRS)}/{rng.choice(_FILES)}.{rng.choice(_ENDS)}"
        case "symbol":
            return (
                f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}"
                if rng.random() < 0.7
                else f"{rng.choice(_VERBS)}" + rng.choice(_NOUNS).capitalize()
            )
        case "email":
            return f"{rng.choice(_FILES)}.{rng.choice(_DIRS)}{rng.randint(1, 99)}@mail.example"
        case "version":
            return f"{rng.randint(0, 4)}.{rng.randint(0, 19)}.{rng.randint(0, 19)}"
    return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"


def write_value(value: Value, rng: Random) -> str:
    """One of the usual ways to write a value."""
    match value.kind:
        case "money":
            return _write_money(value, rng)
        case "date":
            return _write_date(value.text, rng)
        case "time":
            hour, minute = divmod(int(value.number), 60)
            return (
                f"{hour}:{minute:02}"
                if rng.random() < 0.7
                else f"{(hour - 1) % 12 + 1}:{minute:02} {'pm' if hour > 11 else 'am'}"
            )
        case "count" | "large":
            return _write_number(value.number, rng)
    if value.text:
        return value.text
    names = next(names for names in _UNITS[value.kind] if names[0] == value.unit)
    return _write_number(value.number, rng) + rng.choice((" " + names[0], " " + names[1], names[0]))


def _write_money(value: Value, rng: Random) -> str:
    number = _write_number(value.number, rng)
    forms = [f"{number} {value.unit}", f"{value.unit} {number}"]
    if value.unit in _SIGNS:
        forms += [f"{_SIGNS[value.unit]}{number}", f"{number} {_WORDS[value.unit]}"]
    return rng.choice(forms)


def _write_number(number: float, rng: Random) -> str:
    text = (
        f"{number:,.2f}"
        if number != int(number) and abs(number * 10) % 1
        else f"{number:,g}"
        if abs(number) < 1e5
        else f"{number:,.0f}"
    )
    return text if rng.random() < 0.6 else text.replace(",", "")


def _write_date(text: str, rng: Random) -> str:
    year, month, day = text.split("-")
    name = _MONTHS[int(month) - 1]
    return rng.choice((text, f"{int(day)} {name} {year}", f"{name} {int(day)}, {year}", f"{name[:3]} {int(day)}, {year}"))


def round_value(value: Value) -> Value | None:
    """A value as a careless model rounds it; None if it is round."""
    if value.kind == "date":
        year, month, day = value.text.split("-")
        rounded = f"{max(1, round(int(day) / 5) * 5):02}"
        return None if rounded == day else value._replace(text=f"{year}-{month}-{rounded}")
    if value.kind == "time":
        number = round(value.number / 30) * 30.0
    else:
        size = abs(value.number)
        digits = 1 if size < 100 else 2
        number = float(f"{value.number:.{digits}g}") if size >= 10 else float(round(value.number))
    return None if number == value.number else value._replace(number=number)


def change_unit(value: Value, rng: Random) -> Value | None:
    """A value with another unit of the same kind; None if it has no unit."""
    units = _CURRENCIES if value.kind == "money" else tuple(names[0] for names in _UNITS.get(value.kind, ()))
    others = [unit for unit in units if unit != value.unit]
    return value._replace(unit=rng.choice(others)) if others else None
