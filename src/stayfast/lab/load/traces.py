"""Recorded traffic as load: when requests came and how long they and their answers were. No trace holds any text.

Read: CSV `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure 2023 and 2024), CSV `arrival_s,input_tokens,output_tokens` and,
with `reusable_prefix_tokens`, the same of Mooncake; JSONL `{timestamp (ms), input_length, output_length, hash_ids}`
(Mooncake). Mooncake's stamps are rounded to about 3 s, which would make bursts that never were: each such batch is spread
evenly up to the next stamp.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from statistics import median

import msgspec


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """One request of a trace."""

    at_s: float  # from the first of them
    n_input: int
    n_output: int
    n_shared: int = 0  # leading tokens that others began with as well
    blocks: tuple[int, ...] = ()  # identities of the leading blocks of 512 tokens


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


_MOONCAKE = msgspec.json.Decoder(_Mooncake)
_COLUMNS = ("a trace is CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens or "
            "arrival_s,input_tokens,output_tokens, or JSONL with timestamp, input_length and output_length")


def read_trace(lines: Iterable[str], time_scale: float = 1.0) -> list[Recorded]:
    """The requests of a trace in order of time. `time_scale` multiplies its times: 0.1 replays ten times as fast.

    Raises ValueError naming the line that is wrong.
    """
    if not 1e-6 <= time_scale <= 1e6:
        raise ValueError(f"the time scale must be 0.000001 to 1000000, not {time_scale:g}")
    walk = iter(lines)
    head = next(walk, "").strip().removeprefix("\ufeff")
    is_rounded = True
    if head.startswith("{"):
        found = list(_read_jsonl(head, walk))
    else:
        columns = [name.strip() for name in head.split(",")]
        is_rounded = "reusable_prefix_tokens" in columns
        found = list(_read_csv(columns, walk))
    if not found:
        raise ValueError("the trace holds no requests")
    found.sort(key=lambda row: row.at_s)
    times_s = [row.at_s for row in found]
    if is_rounded:
        times_s = _spread(times_s)
    first_s = times_s[0]
    return [msgspec.structs.replace(row, at_s=(at_s - first_s) * time_scale)
            for row, at_s in zip(found, times_s, strict=True)]


def _read_jsonl(head: str, lines: Iterator[str]) -> Iterator[Recorded]:
    for number, line in enumerate((head, *lines), 1):
        if not line.strip():
            continue
        try:
            said = _MOONCAKE.decode(line)
        except (msgspec.DecodeError, UnicodeError) as why:
            raise ValueError(f"line {number} of the trace: {why}") from None
        yield _checked(number, Recorded(said.timestamp / 1e3, said.input_length, said.output_length, blocks=said.hash_ids))


def _read_csv(columns: Sequence[str], lines: Iterator[str]) -> Iterator[Recorded]:
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(columns):
        names = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    elif {"arrival_s", "input_tokens", "output_tokens"} <= set(columns):
        names = ("arrival_s", "input_tokens", "output_tokens")
    else:
        raise ValueError(_COLUMNS)
    at, n_in, n_out = (columns.index(name) for name in names)
    shared = columns.index("reusable_prefix_tokens") if "reusable_prefix_tokens" in columns else None
    to_seconds = _instant if names[0] == "TIMESTAMP" else float
    for number, row in enumerate(csv.reader(lines), 2):
        if not row:
            continue
        try:
            n_shared = int(row[shared]) if shared is not None else 0
            found = Recorded(to_seconds(row[at]), int(row[n_in]), int(row[n_out]), n_shared)
        except (ValueError, IndexError) as why:
            raise ValueError(f"line {number} of the trace: {why}") from None
        yield _checked(number, found)


def _instant(text: str) -> float:
    said = datetime.fromisoformat(text)
    return (said if said.tzinfo is not None else said.replace(tzinfo=UTC)).timestamp()


def _checked(number: int, row: Recorded) -> Recorded:
    if not (abs(row.at_s) < 1e12 and 0 <= row.n_shared <= row.n_input < 1e9 and 0 <= row.n_output < 1e9):
        raise ValueError(f"line {number} of the trace: a time or a number of tokens that cannot be")
    return row


def _spread(times_s: Sequence[float]) -> list[float]:
    """Each batch of equal times, spread evenly up to the next time; the last one as far as batches usually last."""
    batches = [(at_s, sum(1 for _ in same)) for at_s, same in groupby(times_s)]
    starts_s = [at_s for at_s, _ in batches]
    usual_s = median(b - a for a, b in pairwise(starts_s)) if len(batches) > 1 else 0.0
    spread: list[float] = []
    for (at_s, n), next_s in zip(batches, (*starts_s[1:], starts_s[-1] + usual_s), strict=True):
        spread += [at_s + (next_s - at_s) * i / n for i in range(n)]
    return spread
