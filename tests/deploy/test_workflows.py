""".github: least rights, no stored token, releases with provenance, new dependencies after a week."""

import re
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT

FOLDER = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in sorted((FOLDER / "workflows").glob("*.yml"))}


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"]
    return found


def uses(job: dict[str, Any]) -> list[str]:
    """The actions of a job, without their versions."""
    return [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_has_least_rights(name: str) -> None:
    """What it may do is written down, each action has a version, checkouts leave no token, no secret but the run's own."""
    text = WORKFLOWS[name].read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    assert set(re.findall(r"secrets\.(\w+)", text)) <= {"GITHUB_TOKEN"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.search(r"@(v\d+|release/v\d+|[0-9a-f]{40})$", step["uses"])
            assert "checkout" not in step["uses"] or step["with"]["persist-credentials"] is False


def test_ci_runs_the_script_of_everybody() -> None:
    """And nothing that it does not."""
    (job,) = jobs("ci").values()
    assert [step["run"] for step in job["steps"] if "run" in step][-1] == "bash .ci/run"
    assert (ROOT / ".ci" / "run").exists()


def test_release_publishes_with_provenance_and_without_a_token() -> None:
    """The package by trusted publishing, the image from the Dockerfile with an SBOM; each has the rights it needs."""
    release = jobs("release")
    assert "actions/attest-build-provenance" in uses(release["build"])
    assert release["pypi"]["permissions"] == {"id-token": "write"}
    assert "pypa/gh-action-pypi-publish" in uses(release["pypi"])
    (build,) = [step["with"] for step in release["image"]["steps"] if "build-push-action" in step.get("uses", "")]
    assert (build["provenance"], build["sbom"], build["push"]) == ("mode=max", True, True)
    assert (ROOT / build["file"]).exists()
    arguments = set(re.findall(r"^(\w+)=", build["build-args"], re.MULTILINE))
    assert arguments <= set(re.findall(r"^ARG (\w+)", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE))


def test_dependabot_waits_a_week() -> None:
    """For every kind of package, in folders that exist."""
    updates = yaml.safe_load((FOLDER / "dependabot.yml").read_text(encoding="utf-8"))["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"pip", "npm", "docker", "github-actions"}
    for update in updates:
        assert update["cooldown"]["default-days"] >= 7
        for folder in update.get("directories", [update.get("directory")]):
            assert (ROOT / folder.strip("/")).is_dir()
