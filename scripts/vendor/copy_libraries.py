"""Copies the page's JavaScript libraries from their npm packages into `src/stayfast/server/ui/static/vendor`.

    python scripts/vendor/copy_libraries.py [--check]

`npm ci` installs them as package-lock.json pins them (version and SHA-512 of each tarball). What is copied is what was
published, but for three changes: the version is in the file's name, because such files are cached for ever; an import of
another library names that file, because the page has no import map (it would be inline); uPlot, a classic script, exports
its function. --check: compares, and writes nothing.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VENDOR = HERE.parents[1] / "src/stayfast/server/ui/static/vendor"
SOURCES = {  # name in vendor, without its version -> package, path in it
    "preact.mjs": ("preact", "dist/preact.mjs"),
    "preact-hooks.mjs": ("preact", "hooks/dist/hooks.mjs"),
    "htm.mjs": ("htm", "dist/htm.mjs"),
    "uplot.mjs": ("uplot", "dist/uPlot.iife.min.js"),
    "uplot.css": ("uplot", "dist/uPlot.min.css"),
    "preact-LICENSE.txt": ("preact", "LICENSE"),
    "htm-LICENSE.txt": ("htm", "LICENSE"),
    "uplot-LICENSE.txt": ("uplot", "LICENSE"),
}
SOURCE_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")


def versioned(name: str, version: str) -> str:
    """`preact.mjs` as `preact-11.2.0.mjs`."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{version}.{suffix}"


def make_files(packages: Path) -> dict[str, str]:
    """The files of `vendor` by name, from the folder `node_modules`."""
    versions = {package: json.loads((packages / package / "package.json").read_text())["version"]
                for package, _ in SOURCES.values()}
    made = {}
    for name, (package, path) in SOURCES.items():
        text = SOURCE_MAP.sub("\n", (packages / package / path).read_text(encoding="utf-8"))
        if name.endswith(".mjs"):
            text = text.replace('from"preact"', f'from"./{versioned("preact.mjs", versions["preact"])}"')
        if name == "uplot.mjs":
            text = text.rstrip() + "\nexport default uPlot;\n"
        made[versioned(name, versions[package])] = text
    return made


def main() -> int:
    """Returns the exit status: 1 if --check finds a difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    is_check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            Path(folder, name).write_bytes((HERE / name).read_bytes())
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        made = make_files(Path(folder, "node_modules"))
    present = {path.name: path.read_text(encoding="utf-8") for path in VENDOR.iterdir()} if VENDOR.is_dir() else {}
    different = sorted(name for name in made.keys() | present.keys() if made.get(name) != present.get(name))
    if is_check:
        print("\n".join(f"differs: {name}" for name in different) or f"{len(made)} files as published")
        return 1 if different else 0
    VENDOR.mkdir(parents=True, exist_ok=True)
    for name in different:
        if name in made:
            (VENDOR / name).write_text(made[name], encoding="utf-8")
        else:
            (VENDOR / name).unlink()
    print(f"{len(made)} files in {VENDOR}; changed: {', '.join(different) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
