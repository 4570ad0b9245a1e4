"""What is installed: pinned by hash, the same everywhere, named in the wheel, under licences that a product can take."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

LOCKS = ROOT / "requirements"
PARTS = ("serve", "image", "build")
# Copyleft of any kind. MPL-2.0 binds its own files only: certifi, which cloud credentials bring into the image.
COPYLEFT = re.compile(r"\b[AL]?GPL|General Public|EUPL|CC-BY-SA|SSPL", re.IGNORECASE)
BOUND_FILES = re.compile(r"MPL|Mozilla", re.IGNORECASE)


def pins(name: str) -> dict[str, tuple[str, ...]]:
    """By package: its version and its hashes."""
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8")
    return {package: (version, *re.findall(r"sha256:\w+", rest)) for package, version, rest in
            re.findall(r"^([\w.-]+)==(\S+)(.*\n(?:    .*\n)+)", text, re.MULTILINE)}


def licence(package: str) -> str:
    """Its metadata: the expression, else the classifiers, else the text's beginning."""
    metadata = distribution(package).metadata
    expressions = metadata.get_all("License-Expression") or []
    classifiers = [value for value in metadata.get_all("Classifier") or [] if value.startswith("License")]
    texts = [text[:60] for text in metadata.get_all("License") or []]
    return " ".join(expressions or classifiers or texts)


@pytest.mark.parametrize("name", PARTS)
def test_lock_of_a_part_pins_what_development_has(name: str) -> None:
    """Versions and hashes: what is tested is what runs."""
    every, part = pins("dev"), pins(name)
    assert {package: pin for package, pin in part.items() if every.get(package) != pin} == {}
    assert len(part) > 6
    assert all(len(pin) > 1 for pin in part.values())
    listed = re.findall(r"^[\w.-]+==", (LOCKS / f"{name}.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(listed) == len(part)  # none without a hash


def test_lock_for_serving_is_small() -> None:
    """The core and the embedded engine: each package here is one more for everybody."""
    assert set(pins("serve")) < set(pins("image"))
    assert len(pins("serve")) <= 12


@pytest.mark.parametrize("name", ["serve", "image"])
def test_lock_has_no_copyleft(name: str) -> None:
    """By the metadata of what is installed here; files under MPL-2.0 only in the image."""
    licences = {package: licence(package) for package in pins(name) if package != "async-timeout"}
    assert [package for package, text in licences.items() if not text] == []
    assert {package: text for package, text in licences.items() if COPYLEFT.search(text)} == {}
    bound = {package for package, text in licences.items() if BOUND_FILES.search(text)}
    assert bound == (set() if name == "serve" else {"certifi"})


def test_sbom_names_what_the_lock_pins() -> None:
    """All of it, with its version and its hashes; `make lock` writes both."""
    sbom = json.loads((LOCKS / "stayfast.cdx.json").read_text(encoding="utf-8"))
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    assert sbom["metadata"]["component"]["name"] == "stayfast"
    named = {}
    for component in sbom["components"]:
        hashes = [each["content"] for reference in component["externalReferences"] for each in reference["hashes"]]
        named[component["name"]] = {component["version"], *(f"sha256:{one}" for one in hashes)}
    assert named == {package: set(pin) for package, pin in pins("serve").items()}


def test_wheel_has_the_sbom(tmp_path: Path) -> None:
    """Under .dist-info/sboms (PEP 770), byte for byte, and no .pth file."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "requirements").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements/stayfast.cdx.json"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        assert archive.read(name) == (LOCKS / "stayfast.cdx.json").read_bytes()
        assert [name for name in archive.namelist() if name.endswith(".pth")] == []


@pytest.mark.parametrize(("stamps", "lock"), [((), "serve"), ((".serving",), None), ((".serving", ".installed"), None)])
def test_make_serve_installs_only_what_serving_needs(stamps: tuple[str, ...], lock: str | None, tmp_path: Path) -> None:
    """In a fresh clone; nothing where an environment is there, for serving or for development."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(LOCKS, tmp_path / "requirements")
    (tmp_path / ".venv").mkdir()
    for stamp in stamps:
        (tmp_path / ".venv" / stamp).touch()
    planned = subprocess.run(["make", "--dry-run", "serve"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"requirements/(\w+)\.txt", planned)) - {"build"} == ({lock} if lock else set())
    assert "stayfast serve" in planned
