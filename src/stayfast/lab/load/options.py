"""Command-line options declared beside the config fields they set: `name: Annotated[type, Option(...)] = default`.

The declaration is the only place of an option's help, type and bounds. A numeric default is shown in the help.
"""

import argparse
from dataclasses import dataclass, fields
from typing import Any, get_args

from stayfast.core.setting import SettingDoc, read_declarations
from stayfast.core.units import parse_duration


@dataclass(frozen=True, slots=True)
class Option(SettingDoc):
    """A `SettingDoc` with the option's flag. A value whose `metavar` is TIME is written as 500ms, 30s or 2h."""

    flag: str = ""
    metavar: str = "N"

    @property
    def dest(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    def parse(self, text: str, hint: Any) -> float:
        """The value in the type of its field. Raises ValueError that names the option."""
        is_whole = int in (hint, *get_args(hint))
        try:
            value = parse_duration(text) if self.metavar == "TIME" else int(text) if is_whole else float(text)
        except ValueError as why:
            if self.metavar == "TIME":
                raise ValueError(f"{self.flag}: {why}") from None
            raise ValueError(f"{self.flag} {text}: not a {'whole ' if is_whole else ''}number") from None
        if complaint := self.find_violation(value):
            raise ValueError(f"{self.flag} {complaint}, not {text}")
        return value


def add_options(group: "argparse._ActionsContainer", *configs: type) -> None:
    """Add the options of these dataclasses."""
    for config in configs:
        defaults = {field.name: field.default for field in fields(config)}
        for name, (_, option) in read_declarations(config).items():
            assert isinstance(option, Option)
            default = defaults[name]
            unit = "s" if option.metavar == "TIME" else ""
            shown = f" (default: {default:g}{unit})" if isinstance(default, int | float) and default else ""
            group.add_argument(option.flag, metavar=option.metavar, help=option.doc + shown)


def read_options(config: type, given: argparse.Namespace) -> dict[str, Any]:
    """The fields that the command line sets, as keyword arguments. Raises ValueError that names the option."""
    found = {}
    for name, (hint, option) in read_declarations(config).items():
        assert isinstance(option, Option)
        text = getattr(given, option.dest)
        if text is not None:
            found[name] = option.parse(text, hint)
    return found
