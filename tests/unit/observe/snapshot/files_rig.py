"""Files that stand for /proc and /sys."""

from pathlib import Path


def write(root: Path, texts: dict[str, str]) -> None:
    """Write files, by their path below `root`."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
