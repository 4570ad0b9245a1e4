"""Settings of the snapshots on disk, apart from them: settings are read by commands that open no ring."""

from dataclasses import dataclass
from typing import Annotated

from stayfast.core.setting import SettingDoc, check_bounds


@dataclass(frozen=True, slots=True)
class SnapshotsConfig:
    """Snapshots of the last hours on disk."""

    hours: Annotated[float, SettingDoc("How far back; 0: nothing is stored.", minimum=0, maximum=168)] = 6.0
    max_bytes: Annotated[int, SettingDoc(
        "Most bytes in the folder; the oldest records go first.", minimum=1 << 20, maximum=1 << 30)] = 20 << 20
    path: Annotated[str, SettingDoc(
        "Folder of its own for each gateway. Empty: snapshots-PORT in $XDG_STATE_HOME/stayfast (default: "
        "~/.local/state/stayfast), if that folder exists; otherwise nothing is stored.")] = ""

    def __post_init__(self) -> None:
        check_bounds(self)
