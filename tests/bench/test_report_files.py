"""Result files: the round trip, and errors for malformed files."""

import csv
import json
from base64 import b64encode
from math import inf, isnan, nan
from struct import pack
from zlib import compress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfast.lab.load.result import ClientHealth, Sample
from stayfast.lab.load.stats import DEFINITIONS, MeasuredRun
from stayfast.lab.report.files import SCHEMA, csv_lines, from_json, to_json
from tests.bench.synthetic import Scenario, result

SMALL = Scenario(n=60, error_share=0.2)


def test_result_file_round_trip_is_lossless() -> None:
    """Every column, every gap and every field is equal."""
    before = result(SMALL, health=ClientHealth(0.1, 0.2, 0.3, verdict=("late", "short")))
    before.notes = ("a note",)
    after = from_json(to_json([MeasuredRun(before)]))[0]
    assert after.samples.floats.keys() == before.samples.floats.keys()
    for name, column in before.samples.floats.items():
        assert after.samples.floats[name].tobytes() == column.tobytes()
    assert (after.samples.ints, after.samples.errors) == (before.samples.ints, before.samples.errors)
    assert after.samples.server_timings == before.samples.server_timings
    assert (after.gaps.bin_s, after.gaps.bins) == (before.gaps.bin_s, before.gaps.bins)
    for name in before.__struct_fields__:
        if name not in {"samples", "gaps"}:
            assert getattr(after, name) == getattr(before, name)


def test_result_file_uses_vllms_names() -> None:
    """In milliseconds, of successful answers; missing figures are null."""
    run = MeasuredRun(result(Scenario(n=400)))
    found = json.loads(to_json([run]))["results"][0]
    assert found["p99_ttft_ms"] == pytest.approx(run.distributions["ttft"].quantile(0.99) * 1e3)
    assert found["median_itl_ms"] == pytest.approx(run.distributions["gap"].quantile(0.5) * 1e3)
    assert found["p99.9_e2el_ms"] == pytest.approx(run.distributions["e2e"].quantile(0.999) * 1e3)
    assert found["mean_tpot_ms"] == pytest.approx(run.distributions["tpot"].mean_s * 1e3)
    assert found["request_goodput"] == pytest.approx(run.goodput.n_good / run.result.duration_s)
    assert (found["completed"], found["failed"]) == (run.n_succeeded, run.n_offered - run.n_succeeded)


def test_result_file_has_schema_and_definitions() -> None:
    text = to_json([MeasuredRun(result(Scenario(n=0)))]).decode()
    file = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (file["schema"], file["definitions"]) == (SCHEMA, dict(DEFINITIONS))
    assert file["results"][0]["p99_ttft_ms"] is None


def test_csv_has_one_row_a_request() -> None:
    """Instants to the microsecond, empty for what did not happen, and no cell that a spreadsheet would run."""
    run = result(SMALL)
    run.label = "=cmd|' /C calc'!A0"
    rows = list(csv.DictReader("".join(csv_lines([MeasuredRun(run)])).splitlines()))
    assert len(rows) == len(run.samples)
    assert list(rows[0]) == ["result", *Sample.__struct_fields__]
    for row, sample in zip(rows, run.samples, strict=True):
        assert (row["result"], int(row["number"]), row["error"]) == (f"'{run.label}", sample.number, sample.error)
        assert float(row["at_s"]) == pytest.approx(sample.at_s, abs=1e-6)
        assert (row["first_s"] == "") == isnan(sample.first_s)


@pytest.mark.parametrize(("change", "expected"), [
    (lambda file: file.update(schema="other/9"), "schema is 'other/9'"),
    (lambda file: file.update(results=[]), "no results"),
    (lambda file: file["results"][0].update(columns=None), "not a result"),
    (lambda file: file["results"][0]["columns"].pop("at_s"), "'at_s' is missing"),
    (lambda file: file["results"][0]["columns"].update(at_s="?"), "'at_s' cannot be read"),
    (lambda file: file["results"][0]["columns"].update(at_s=packed(b"1234567")), "'at_s' is cut short"),
    (lambda file: file["results"][0]["columns"].update(at_s=packed(b"12345678")), "'at_s' has 1 rows, not 60"),
    (lambda file: file["results"][0]["columns"].update(at_s=packed(pack("60d", *[inf] * 60))), "'at_s' holds an instant"),
    (lambda file: file["results"][0]["columns"].update(at_s=packed(pack("60d", *[nan] * 60))), "'at_s' lacks a value"),
    (lambda file: file["results"][0]["columns"].update(errors=packed(b'["nonsense"]')), "texts cannot be read"),
    (lambda file: file["results"][0]["columns"].update(errors=packed(b"[]")), "texts are not 60 rows"),
    (lambda file: file["results"][0].pop("run"), "missing required field `run`"),
    (lambda file: file["results"][0]["run"]["slo"].update(ttft_s=-1), "ttft must be above 0"),
    (lambda file: file["results"][0]["run"]["gaps"].update(x={}), "not a result"),
    (lambda file: file["results"][0]["run"]["gaps"].update({"0": {"99999": 1}}), "not a result"),
    (lambda file: file["results"][0]["run"].update(gaps_bin_s=0), "bin_s must be above 0")])
def test_result_file_wrong_content_is_refused(change: "object", expected: str) -> None:
    file = json.loads(to_json([MeasuredRun(result(SMALL))]))
    assert callable(change)
    change(file)
    with pytest.raises(ValueError, match=expected):
        from_json(json.dumps(file).encode())


def test_result_file_oversized_column_is_refused() -> None:
    """A small untrusted file must not fill the memory."""
    file = json.loads(to_json([MeasuredRun(result(SMALL))]))
    file["results"][0]["columns"]["at_s"] = packed(bytes(64 << 20))
    assert len(from_json(json.dumps(file).encode())[0].samples) == 60


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_result_file_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a result"):
        from_json(data)


def packed(data: bytes) -> str:
    return b64encode(compress(data)).decode()
