"""Imports of short configurations, and what became of their values."""

import re
from collections.abc import Mapping

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsText, load_settings
from stayfast.settings.litellm_import.importer import ImportedFile, import_litellm
from stayfast.settings.litellm_import.ledger import ImportVerdict
from stayfast.settings.problems import Problem, SettingsError, SourceLocation

DIGEST = "sha256:" + "0" * 64
_NEEDED = re.compile(r"\$\{(\w+)\}")  # without a default


def import_text(text: str, files: Mapping[str, str] | None = None) -> ImportedFile:
    """The import of a text; `files`: by the name of an include."""
    def read(name: str, including: str) -> SettingsText:
        if files is None or name not in files:
            raise SettingsError([Problem(SourceLocation(name), (), "cannot be read")])
        return SettingsText(name, files[name])

    return import_litellm(SettingsText("config.yaml", text), read)


def verdicts(found: ImportedFile) -> dict[str, ImportVerdict]:
    """The list of each value, by its path within its file."""
    return {value.name: found.ledger.mark_of(value).verdict for value in found.ledger.values}


def reasons(found: ImportedFile, name: str) -> str:
    """Why the value at a path is where it is."""
    [mark] = [found.ledger.mark_of(value) for value in found.ledger.values if value.name == name]
    return f"{mark.becomes}; {mark.why}"


def variables_of(text: str) -> dict[str, str]:
    """A value for each variable that a written file refers to."""
    special = {"DIGEST": DIGEST, "BASE": "https://host.example", "URL": "https://host.example", "PORT": "6379",
               "REGION": "us-east-1", "LOCATION": "us-east-1", "CREDENTIALS": __file__, "FILE": __file__}
    return {name: special.get(name.rpartition("_")[2], "some-value") for name in _NEEDED.findall(text)}


def load_written(found: ImportedFile) -> Settings:
    """The written file, as the gateway loads it. Raises SettingsError."""
    return load_settings(SettingsText("stayfast.yaml", found.text), variables_of(found.text), kinds=KINDS)
