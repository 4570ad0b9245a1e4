"""Result files: JSON to compare later, CSV with one row a request.

The JSON is `{"schema": "stayfast.bench/1", "results": [...]}`. The top of each result has its figures under the names of
vLLM's bench where the meaning is the same (`p99_ttft_ms`, `request_goodput`, ...: milliseconds and requests/s, of successful
answers), and in the same pattern where vLLM has none (`p99_ttft_sched_ms`). One differs: vLLM's `e2el` ends at the last
chunk, ours at the last chunk *with content*. `run` holds the rest of the result; `columns` the samples, each column as
base64 of zlib of little-endian float64 or int64 (`errors`, `server_timings`: of a JSON list): tens of MB for a million rows.
"""

import base64
import csv
import io
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import isfinite, isnan
from typing import Annotated, Any, Final

import msgspec

from stayfast.lab.load.result import ClientHealth, Error, GapCounts, LoadSlo, Mode, Result, Sample, Samples, Subject
from stayfast.lab.load.stats import DEFINITIONS, MeasuredRun

SCHEMA: Final = "stayfast.bench/1"
_QUANTILES: Final = (("median", 0.5), ("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999))
_NAMES: Final = {"ttft": "ttft", "ttft_sched": "ttft_sched", "ttfo": "ttfo", "ttfb": "ttfb", "e2e": "e2el",
                 "e2e_sched": "e2el_sched", "tpot": "tpot", "gap": "itl", "gap_max": "itl_max"}
_MAX_TEXT_BYTES: Final = 1 << 30
_MOST_S: Final = 1e9
_CSV_COLUMNS: Final = ("result", *Sample.__struct_fields__)


_Bin = Annotated[int, msgspec.Meta(ge=0, le=4096)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Run(msgspec.Struct, kw_only=True):
    """A result without its samples."""

    label: str
    subject: Subject
    command: str
    machine: dict[str, str]
    began_at_wall: float
    seed: int
    mode: Mode
    workload: dict[str, str]
    duration_s: float
    offered_rps: float
    n_concurrent: int
    is_virtual: bool
    counted_by: str
    health: ClientHealth
    slo: LoadSlo
    notes: tuple[str, ...]
    gaps_bin_s: float
    gaps: dict[_Bin, dict[_Bin, _Count]]  # time bin -> bucket -> count, see `GapCounts`


_SAME_FIELDS: Final = tuple(name for name in _Run.__struct_fields__ if not name.startswith("gaps"))


class _Saved(msgspec.Struct):
    run: _Run
    n_rows: int
    columns: dict[str, str]


class _File(msgspec.Struct):
    schema: str
    results: list[_Saved]


def to_json(runs: Sequence[MeasuredRun]) -> bytes:
    results = []
    for run in runs:
        same = {name: getattr(run.result, name) for name in _SAME_FIELDS}
        plain = _Run(**same, gaps_bin_s=run.result.gaps.bin_s, gaps=run.result.gaps.bins)
        results.append({**export_figures(run), "run": plain, "n_rows": run.n_offered,
                        "columns": _encode_columns(run.result.samples)})
    return msgspec.json.format(msgspec.json.encode({"schema": SCHEMA, "definitions": dict(DEFINITIONS), "results": results}))


def from_json(data: bytes) -> list[Result]:
    """The results of a file. Raises ValueError if it is invalid."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.DecodeError as why:
        raise ValueError(f"not a result of `stayfast bench --json`: {why}") from why
    if file.schema != SCHEMA:
        raise ValueError(f"the file's schema is {file.schema!r}, this version reads {SCHEMA!r}")
    if not file.results:
        raise ValueError("the file holds no results")
    return [_decode_result(saved) for saved in file.results]


def csv_lines(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """A header, then one row a request: instants in seconds of the run, empty for what did not happen."""
    yield _csv_line(_CSV_COLUMNS)
    for run in runs:
        for sample in run.result.samples:
            cells = (run.result.label, *(getattr(sample, name) for name in Sample.__struct_fields__))
            yield _csv_line([_format_cell(cell) for cell in cells])


def export_figures(run: MeasuredRun) -> dict[str, Any]:
    """The figures of one run under their public names; missing ones are null."""
    result, goodput = run.result, run.goodput
    found: dict[str, Any] = {
        "label": result.label, "date": datetime.fromtimestamp(result.began_at_wall, UTC).isoformat(timespec="seconds"),
        "backend": result.subject.dialect, "model_id": result.subject.model, "num_prompts": run.n_offered,
        "request_rate": result.offered_rps, "max_concurrency": result.n_concurrent or None, "duration": result.duration_s,
        "completed": run.n_succeeded, "failed": run.n_offered - run.n_succeeded, "total_input_tokens": run.n_input,
        "total_output_tokens": run.n_output, "request_throughput": run.per_second(run.n_succeeded),
        "request_goodput": run.per_second(goodput.n_good), "output_throughput": run.per_second(run.n_output),
        "total_token_throughput": run.per_second(run.n_input + run.n_output),
        "goodput_share_of_offered": goodput.share, "goodput_slo_s": goodput.slo.bounds(), "goodput_misses": goodput.misses,
        "errors": dict(sorted(run.errors.items())),
        "is_valid": result.health.is_valid, "invalid_because": list(result.health.verdict), "percentile_method": "linear",
        "spike_factor_ttft_sched": run.spike_factor(),
    }
    for name, public in _NAMES.items():
        spread = run.distributions[name]
        found[f"mean_{public}_ms"] = spread.mean_s * 1e3
        found[f"std_{public}_ms"] = spread.deviation_s * 1e3
        found.update({f"{word}_{public}_ms": spread.quantile(share) * 1e3 for word, share in _QUANTILES})
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in found.items()}


def _decode_result(saved: _Saved) -> Result:
    gaps = GapCounts(saved.run.gaps_bin_s)
    gaps.bins = saved.run.gaps
    same = {name: getattr(saved.run, name) for name in _SAME_FIELDS}
    return Result(**same, samples=_decode_columns(saved.columns, saved.n_rows), gaps=gaps)


def _encode_columns(samples: Samples) -> dict[str, str]:
    columns = {name: _compress(_little_endian(column).tobytes()) for name, column in _number_columns(samples)}
    columns["errors"] = _compress(msgspec.json.encode(samples.errors))
    columns["server_timings"] = _compress(msgspec.json.encode(samples.server_timings))
    return columns


def _decode_columns(columns: dict[str, str], n_rows: int) -> Samples:
    samples = Samples()
    for name, column in _number_columns(samples):
        column.frombytes(_decompress(columns, name, n_rows * column.itemsize))
        if len(column) != n_rows:
            raise ValueError(f"column {name!r} has {len(column)} rows, not {n_rows}")
        if sys.byteorder == "big":
            column.byteswap()
        if any(abs(value) > _MOST_S for value in samples.floats.get(name, ())):
            raise ValueError(f"column {name!r} holds an instant out of range")
    if any(isnan(at_s) for at_s in samples.floats["at_s"]):
        raise ValueError("column 'at_s' lacks a value: every request has an intended start")
    try:
        samples.errors = msgspec.json.decode(_decompress(columns, "errors", _MAX_TEXT_BYTES), type=list[Error])
        samples.server_timings = msgspec.json.decode(_decompress(columns, "server_timings", _MAX_TEXT_BYTES), type=list[str])
    except msgspec.DecodeError as why:
        raise ValueError(f"the samples' texts cannot be read: {why}") from why
    if not len(samples.errors) == len(samples.server_timings) == n_rows:
        raise ValueError(f"the samples' texts are not {n_rows} rows")
    return samples


def _number_columns(samples: Samples) -> "list[tuple[str, array[Any]]]":
    return [*samples.floats.items(), *samples.ints.items()]


def _little_endian(column: "array[Any]") -> "array[Any]":
    if sys.byteorder == "little":
        return column
    copy = array(column.typecode, column)
    copy.byteswap()
    return copy


def _compress(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _decompress(columns: dict[str, str], name: str, most_bytes: int) -> bytes:
    """The bytes of a column, at most `most_bytes`: an untrusted file must not fill the memory."""
    if name not in columns:
        raise ValueError(f"column {name!r} is missing")
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(columns[name], validate=True), most_bytes or 1)
    except (ValueError, zlib.error) as why:
        raise ValueError(f"column {name!r} cannot be read: {why}") from why
    if len(data) % 8 and name not in {"errors", "server_timings"}:
        raise ValueError(f"column {name!r} is cut short")
    return data


def _csv_line(cells: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _format_cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6f}" if isfinite(value) else ""
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return f"'{value}"  # untrusted text: a spreadsheet would run it as a formula
    return value
