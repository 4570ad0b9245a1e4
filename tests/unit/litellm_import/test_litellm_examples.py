"""The configurations that LiteLLM ships, from its wheel (requirements/examples.txt): they import, and the result loads."""

import re
import sys
import zipfile
from pathlib import Path

import pytest

from stayfast.settings.litellm_import.ledger import ImportVerdict
from stayfast.settings.litellm_import.report import count_verdicts, format_values
from tests.absent import absent
from tests.unit.litellm_import.rig import import_text, load_written, verdicts

FOLDER = Path(sys.prefix) / "examples"
PROXY = "litellm/proxy/"
EXAMPLE = re.compile(r"config\.yaml$|/example_config_yaml/.*\.yaml$")
N_FILES = 30
NOTHING_TO_SERVE = {"guardrails/guardrail_hooks/ibm_guardrails/example_config.yaml"}  # it has no model_list


def read_examples() -> dict[str, str]:
    """The texts by their path below litellm/proxy; empty without the wheel."""
    found = {}
    for wheel in FOLDER.glob("litellm-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(PROXY) and EXAMPLE.search(name):
                    found[name.removeprefix(PROXY)] = archive.read(name).decode()
    return found


EXAMPLES = read_examples()


def test_example_files_are_those_of_the_pinned_wheel() -> None:
    """A new version brings new files; the number is in the table of the page."""
    if not EXAMPLES:
        absent("LiteLLM's wheel: make setup")
    assert len(EXAMPLES) == N_FILES


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - NOTHING_TO_SERVE))
def test_example_imports_and_the_result_loads(name: str) -> None:
    """With every variable set that the written file refers to."""
    found = import_text(EXAMPLES[name])
    settings = load_written(found)
    assert len(settings.upstreams) == found.n_upstreams
    assert len(settings.routes) == found.n_routes > 0


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_each_value_of_an_example_is_in_one_list(name: str) -> None:
    """One line for each value, and no value without one."""
    found = import_text(EXAMPLES[name])
    counts = count_verdicts(found.ledger)
    assert sum(counts.values()) == len(found.ledger.values) > 0
    assert len(format_values(found.ledger).splitlines()) == len(ImportVerdict) + sum(counts.values())


@pytest.mark.parametrize("name", sorted(NOTHING_TO_SERVE & EXAMPLES.keys()))
def test_example_without_models_writes_no_route(name: str) -> None:
    """All of it is listed as not taken."""
    found = import_text(EXAMPLES[name])
    assert found.n_routes == 0
    assert set(verdicts(found).values()) == {ImportVerdict.NOT_TAKEN}
