"""Untrusted JSON in: bytes are bounded before they are parsed, and every complaint names its field.

Depth is bounded without parsing: with its strings cut out, a document is only brackets, and its depth is their highest
running sum. Most bodies have fewer brackets than the limit has levels and skip even that. The sum takes 20 ns a bracket, so
their number is bounded as well.
Values of the client never stand in a message: they may be prompts.
"""

import re
from array import array
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec

from stayfast.core.errors import Rejected

T = TypeVar("T")

MAX_MARKS: Final = 2_000_000  # brackets outside of strings, and quotes of strings that hold brackets
_SHORT: Final = 65_536  # bytes
_STEPS: Final = bytes.maketrans(b"{}[]", b"\x01\xff\x01\xff")
_NO_MARKS: Final = bytes(sorted(set(range(256)) - set(b'{}[]"')))
_HALF_A_PAIR: Final = re.compile(rb"\\u(?:d[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..\\u)d[c-f])", re.IGNORECASE)
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)
_ANY: Final = msgspec.json.Decoder()
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")


def check(body: bytes, max_depth: int) -> None:
    """Refuse what no parser should see: not UTF-8, or nested deeper than `max_depth`. Raises Rejected."""
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise Rejected(f"the body is not valid UTF-8 (byte {error.start})", code="invalid_json") from None
    if len(body) <= _SHORT:  # this goes from one to the next, where `count` looks at each byte
        n_brackets = len(body) - len(body.replace(b"[", b"").replace(b"{", b""))
    else:  # of which somebody may send thirty million
        n_brackets = body.count(b"[") + body.count(b"{")
    if n_brackets > max_depth and _is_deeper(body, max_depth):
        raise too_deep(max_depth)


def too_deep(max_depth: int) -> Rejected:
    """The refusal of a body that nests too deeply."""
    return Rejected(f"the body is nested deeper than {max_depth} levels", code="too_deep")


def _is_deeper(body: bytes, max_depth: int) -> bool:
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(None, _NO_MARKS).replace(b'""', b"")  # two quotes less change nothing for what is behind them
    if marks.count(b'"') <= MAX_MARKS:
        brackets = b"".join(marks.split(b'"')[::2])
        if len(brackets) <= MAX_MARKS:
            return max(accumulate(array("b", brackets.translate(_STEPS))), default=0) > max_depth
    raise Rejected(f"the body holds more than {MAX_MARKS} brackets", code="too_complex")


def typed(decoder: "msgspec.json.Decoder[T]", body: bytes, at: str = "", expected: str = "") -> T:
    """Parse `body`, which stands at path `at` of the request; `expected`: the words that a field with certain ones may be.
    Raises Rejected with the offending field as `param`.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), at, expected) from None
    except msgspec.DecodeError as error:
        why = "half of a surrogate pair" if _HALF_A_PAIR.search(body.replace(b"\\\\", b"")) else error
        raise Rejected(f"the body is not valid JSON: {why}", code="invalid_json") from None
    except RecursionError:
        raise Rejected("the body is nested too deeply", code="too_deep") from None


def _wrong_type(said: str, at: str, expected: str) -> Rejected:
    match = _AT.match(said)
    assert match is not None
    what = match["what"]
    path = at + (match["path"] or "$")[1:]
    lacks = _MISSING.match(what)
    if lacks is not None:
        return missing(f"{path}.{lacks['field']}".lstrip("."))
    path = path.lstrip(".")
    if what.startswith("Invalid value"):
        what = f"Unknown value, expected {expected}" if expected else "Unknown value"
    return Rejected(f"{path or 'the body'}: {what[0].lower()}{what[1:]}", code="invalid_type", param=path or None)


def object_in(body: bytes) -> dict[str, Any]:
    """The JSON object that `body` is; empty where it is none. For answers, which are judged by what they lack."""
    try:
        said = _ANY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def required(value: T | None, path: str) -> T:
    """`value`, which the protocol demands at `path`. Raises Rejected where it is missing."""
    if value is None:
        raise missing(path)
    return value


def missing(path: str) -> Rejected:
    """The refusal of a request that lacks the field at `path`."""
    return Rejected(f"{path} is required", code="missing_field", param=path)


def unsayable(param: str, target: str, why: str = "") -> Rejected:
    """The refusal of what the upstream's protocol has no words for."""
    reason = f": {why}" if why else ""
    return Rejected(f"{param} cannot be said to this model, which speaks {target}{reason}", code="unsupported_field",
                    param=param)
