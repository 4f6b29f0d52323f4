"""The Python interface as pages: which names stand on which, for mkdocstrings to fill from their docstrings."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import limpid
from limpid.data import HOMES as DATA
from prose import inline

PAGES = {
    "runs": ("Train and tune", ("train", "resume", "tune", "Callback"), ("limpid.run.Run", "limpid.metrics.Metrics")),
    "steps": (
        "Open, compare, look inside",
        ("trace", "recording", "surrogate", "compare", "inspect"),
        ("limpid.tracing.trace.Trace",),
    ),
    "models": (
        "Use and judge",
        ("load", "generate", "evaluate", "compress", "decompress", "export"),
        ("limpid.generation.completion.Completion",),
    ),
    "plans": (
        "Plan",
        ("plan",),
        ("limpid.api.plans.rehearse", "limpid.planning.report.Plan", "limpid.planning.figure.Figure"),
    ),
    "doctor": (
        "The doctor",
        ("watch",),
        (
            "limpid.doctor.finding.Finding",
            "limpid.doctor.callbacks.trainer_callback",
            "limpid.doctor.callbacks.lightning_callback",
        ),
    ),
    "data": ("Data", ("data",), tuple(f"{home}.{name}" for name, home in DATA.items())),
    "configuration": (
        "Configuration",
        ("TrainConfig", "ModelConfig", "DataConfig", "UpdateConfig", "RunConfig"),
        ("limpid.config.sampling.Sampling",),
    ),
    "mathematics": (
        "Mathematics",
        ("maths",),
        ("limpid.maths.operation.Operation", "limpid.maths.formula.Formula", "limpid.maths.chain"),
    ),
}
"""Title, public names, and what those give or take."""
MEMBERS = {
    "limpid.run.Run": (
        "read_metrics", "read_samples", "read_config", "read_state", "checkpoint_steps", "latest_checkpoint",
        "best_checkpoint", "recorded_steps", "checkpoint", "recorded_step", "model_folder", "adapter_folder", "verify",
    ),
    "limpid.doctor.doctor.Doctor": ("preflight", "step", "steps", "findings", "close"),
    "limpid.metrics.Metrics": ("column", "names", "steps", "evaluations"),
}  # fmt: skip
"""What of a class is for users, where that is not all of it."""
MODULES = ("data", "maths")
HEAD = """# Python

`import limpid` loads nothing until a name is used. Functions are silent, and what they return is what the verb of the
same name shows: `document()` is its `--json`, and a notebook draws it. Errors are `limpid.errors.LimpidError`: one line
with the value, what was expected and the way out.

| | |
|---|---|
"""


def pages() -> dict[str, str]:
    """Markdown by address.

    Raises  ValueError for a public name that has no page
    """
    placed = {name for _, names, _ in PAGES.values() for name in names}
    if placed != set(limpid.HOMES):
        raise ValueError(f"the API reference and limpid's public names differ by {sorted(placed ^ set(limpid.HOMES))}")
    return {"api/index.md": _index(), **{f"api/{page}.md": _page(page) for page in PAGES}}


def _index() -> str:
    rows = [
        f"| [`limpid.{name}`]({page}.md#{_home(name)}) | {inline(_purpose(name))} |"
        for page, (_, names, _) in PAGES.items()
        for name in names
    ]
    return HEAD + "\n".join(rows) + "\n"


def _page(page: str) -> str:
    title, names, others = PAGES[page]
    parts = [f"# {title}\n"]
    parts += [_module(name) if name in MODULES else _described(_home(name)) for name in names]
    parts += map(_described, others)
    return "\n".join(parts)


def _described(home: str) -> str:
    """What mkdocstrings is asked for."""
    members = MEMBERS.get(home)
    chosen = "" if members is None else f"    options:\n      members: [{', '.join(members)}]\n"
    return f"::: {home}\n{chosen}"


def _module(name: str) -> str:
    more = " Its functions and operations are the [equations](../equations/index.md)." if name == "maths" else ""
    return f'<a id="limpid.{name}"></a>`limpid.{name}`: {inline(_purpose(name))}{more}\n'


def _home(name: str) -> str:
    """Where it is defined, as mkdocstrings finds it without importing."""
    if name == "watch":
        return "limpid.doctor.doctor.Doctor"
    return f"limpid.{name}" if name in MODULES else f"{_defining(limpid.HOMES[name], name)}.{name}"


def _defining(module: str, name: str) -> str:
    """The module that a package takes a name from."""
    tree = _parsed(module)
    only_typed = [one for node in tree.body if isinstance(node, ast.If) for one in node.body]
    for node in [*tree.body, *only_typed]:
        if isinstance(node, ast.ImportFrom) and node.module and any(one.name == name for one in node.names):
            return _defining(node.module, name)
    return module


def _purpose(name: str) -> str:
    """The first sentence of its docstring."""
    module, _, own = _home(name).rpartition(".")
    found: ast.Module | ast.FunctionDef | ast.ClassDef = _parsed(limpid.HOMES[name] if name in MODULES else module)
    if name not in MODULES:
        defined = (one for one in found.body if isinstance(one, ast.FunctionDef | ast.ClassDef))
        found = next(one for one in defined if one.name == own)
    return " ".join((ast.get_docstring(found) or "").split("\n\n")[0].split())


def _parsed(module: str) -> ast.Module:
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ValueError(f"{module} has no source")
    return ast.parse(Path(found.origin).read_text(encoding="utf-8"))
