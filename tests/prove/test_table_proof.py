"""The claim `table` holds in a short run, and falls short without its parts."""

from collections.abc import Mapping
from hashlib import blake2b
from math import isnan
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import uvloop
from numpy.typing import NDArray

from stayfast.lab.claims.semantic import CLASSES
from stayfast.lab.claims.table import ALL_ON, DIRECT, TIDY, Size, TableClaim
from stayfast.lab.harness.claim import Conditions, Extent, Figure, SetUpFailed
from stayfast.lab.harness.virtual import run_virtual
from stayfast.lab.workloads.support_desk import (
    REPEATED,
    Outcomes,
    QuestionSource,
    Visit,
    draw_visits,
    make_embedder,
    parse_question,
    render_answer,
    visit_in_virtual_time,
)
from stayfast.policy.cache.calibration import Calibrator
from tests.bench.phrased import as_csv

N_DIMS = 64
N_WARM, N = 1200, 500
LIKE = 6  # one in so many of the questions that are asked once is like one that comes again


def _unit(word: str) -> NDArray[np.float32]:
    """A pseudo-random unit vector, seeded by the word."""
    seed = int.from_bytes(blake2b(word.encode(), digest_size=4).digest(), "little")
    found = np.random.default_rng(seed).standard_normal(N_DIMS, dtype=np.float32)
    unit: NDArray[np.float32] = found / np.linalg.norm(found)
    return unit


def _row(visit: Visit) -> NDArray[np.float32]:
    """A vector near those of the same task, without a model."""
    if visit.is_repeated:
        row = _unit(f"task {visit.article}") + np.float32(0.4) * _unit(visit.text)
    elif visit.article % LIKE == 0:
        row = _unit(f"task {visit.article // LIKE % 40}") + np.float32(0.9) * _unit(visit.text)
    else:
        row = _unit(visit.text)
    unit: NDArray[np.float32] = row / np.linalg.norm(row)
    return unit


@pytest.fixture(scope="module")
def said() -> list[Visit]:
    """The visits."""
    return draw_visits(QuestionSource(Random(1)), Random(1), N_WARM + N)


def came_of(said: list[Visit], route: Mapping[str, Any]) -> Outcomes:
    """The outcomes of these visits at a gateway with this route."""
    embedder = make_embedder({visit.text: _row(visit) for visit in said}, "by chance")
    return run_virtual(visit_in_virtual_time, said, N_WARM, route, rate_rps=100.0, seed=1, embedder=embedder)


def test_draw_visits_shares_match_claim(said: list[Visit]) -> None:
    """40 % are repeated questions, mostly in new words; unique ones have their own articles."""
    again = [visit for visit in said if visit.is_repeated]
    once = [visit for visit in said if not visit.is_repeated]
    assert abs(len(again) / len(said) - REPEATED) < 0.03
    assert len({visit.text for visit in again}) > 0.9 * len(again)
    assert len({visit.text for visit in once}) == len({visit.article for visit in once}) == len(once)
    assert not {visit.article for visit in again} & {visit.article for visit in once}


def test_parse_question_with_and_without_marks() -> None:
    """The pasted text is not part of the question."""
    plain, marked = (b'{"messages":[{"role":"user","content":%b}]}' % content for content in (
        b'"Why?\\n\\nAll of this."', b'[{"type":"text","text":"Why?\\n\\nAll","cache_control":{"type":"ephemeral"}}]'))
    assert parse_question(plain) == parse_question(marked) == "Why?"
    assert render_answer(12).startswith("Article 12 of ")


def test_table_claim_all_on_is_faster_and_cheaper_than_direct(said: list[Visit]) -> None:
    direct, tidy, all_on = (came_of(said, route) for route in (DIRECT, TIDY, ALL_ON))
    shares = (0.5, 0.95, 0.99)
    assert all(quick < 0.9 * slow for quick, slow in zip(all_on.at(shares), direct.at(shares), strict=True))
    assert direct.by_kind == {"off": N}
    assert all_on.by_kind["semantic"] > 0.2 * N
    assert all_on.n_failed == sum(all_on.wrong.values()) - all_on.wrong["semantic"] == 0
    assert 1.9 < direct.n_prompted / direct.n_calls / 1000 < 2.1
    assert direct.n_cached == 0
    assert 0.5 < tidy.n_cached / tidy.n_prompted < 0.65
    assert all_on.usd < tidy.usd < direct.usd


def test_table_claim_cache_that_always_answers_is_wrong(said: list[Visit], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calibrator, "reject_reason", lambda self, p: "")
    came = came_of(said, ALL_ON)
    assert came.wrong["semantic"] > 0.1 * came.by_kind["semantic"]


def figures(conditions: Conditions) -> dict[str, Figure]:
    """The figures of the shortest run."""
    finding = uvloop.run(TableClaim(quick=Size(200, Extent(200, 2.0, warmup_s=1.0))).run(conditions))
    return {figure.name: figure for figure in finding.figures}


@pytest.mark.sockets
def test_table_claim_takes_every_figure(tmp_path: Path) -> None:
    """The run is too short for the goals."""
    (tmp_path / CLASSES).write_text(as_csv())
    found = figures(Conditions(is_quick=True, data=tmp_path))
    missing = {name for name, figure in found.items() if isnan(figure.value)}
    assert missing == {f"{where}: of its answers, wrong" for where in ("virtual time", "a bank's questions")}  # it gave none
    assert next(figure.value for name, figure in found.items() if name.startswith("sockets: requests without")) == 0
    assert 0 < found["sockets: spend, less than direct by"].value < 100


def test_table_claim_invalid_file_raises(tmp_path: Path) -> None:
    (tmp_path / CLASSES).write_text("neither,nor\n1,2\n")
    with pytest.raises(SetUpFailed, match=CLASSES):
        figures(Conditions(is_quick=True, data=tmp_path))
