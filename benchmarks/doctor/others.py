"""What other tools see on the same faults and the same healthy runs, one architecture.

python -m benchmarks.doctor.others [--only NUM,OK] [--architecture plain] [--json others.json] [--table docs/doctor.md]

Anomaly mode ships with PyTorch and the underflow/overflow debugger with transformers. TorchLens and runmedic are taken
when they can be imported: `pip install --target FOLDER --no-deps torchlens graphviz runmedic`, then PYTHONPATH=FOLDER.
Each is given what it asks for: anomaly mode and the debugger the run itself, TorchLens the forward pass of the first
batch, of the batch whose loss is not finite and of the last one, runmedic a log of loss, gradient norm, rate and
validation loss.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import json
import logging
import math
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.doctor.__main__ import CASES, chosen, words, write_table
from benchmarks.doctor.fault import Fault
from benchmarks.doctor.healthy import Healthy
from benchmarks.doctor.loop import Loop
from rich.progress import track
from torch import Tensor

BEGIN, END = "<!-- others: python -m benchmarks.doctor.others -->", "<!-- end of others -->"
CAUSES = {
    "NUM-01": "float16|half|overflow in", "NUM-02": "bf16|bfloat16", "NUM-03": "mask|padding",
    "NUM-04": "underflow|scal",
    "NUM-05": "eps", "NUM-06": "exp|log", "NUM-07": "sqrt|pow", "OPT-01": "learning rate|LR", "OPT-02": "zero_grad",
    "OPT-03": "not passed to the optimizer", "OPT-04": "unscale", "OPT-05": "decay", "OPT-06": "eps",
    "OPT-07": "not passed to the optimizer", "OPT-08": "sign|maximi", "OPT-09": "learning rate is (0|zero)",
    "DAT-01": "leak|shift|misaligned", "DAT-02": "padding", "DAT-03": "same batch|repeat|memor",
    "DAT-04": "dtype|out of range|vocab",
    "DAT-05": "shuffl|order", "DAT-06": "corrupt|bad batch|bad data", "DAT-07": "label|empty", "DAT-08": "bos|template",
    "GRA-01": "causal|leak", "GRA-02": "frozen|detach|not connected|requires_grad", "GRA-03": "tied", "GRA-04": "scale",
    "GRA-05": "rotary|position", "GRA-06": "init", "GRA-07": "residual", "GRA-08": "batch",
    "LOS-01": "accumul", "LOS-02": "reduction|sum", "LOS-03": "softmax", "LOS-04": "logit|z-loss",
    "CFG-01": "schedul|warm", "CFG-02": "eval\\(|train\\(|dropout", "CFG-03": "checkpoint|loaded|strict",
}  # fmt: skip
"""Words of which one must be among what a tool says for it to have named the cause: generous, any mention counts."""


def anomaly_mode(loop: Loop) -> str:
    """torch.autograd.set_detect_anomaly around the whole run."""
    try:
        with torch.autograd.set_detect_anomaly(True):
            loop.run()
    except RuntimeError as error:
        if "returned nan values" in str(error):
            return str(error).split("\n")[0]
    return ""


def debugger(loop: Loop) -> str:
    """transformers.debug_utils.DebugUnderflowOverflow on the model."""
    from transformers.debug_utils import DebugUnderflowOverflow

    class Hooked:
        def begin(self, loop: Loop) -> None:
            DebugUnderflowOverflow(loop.model)

        def step(self, loop: Loop, loss: Tensor, batches: list[Any]) -> None:
            pass

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            loop.run(Hooked())
    except ValueError as error:
        if "DebugUnderflowOverflow" in str(error):
            first = re.search(r"(?:inf|nan)\s.*", printed.getvalue())
            return f"{error} {first.group(0) if first else ''}"
    return ""


def torchlens(loop: Loop) -> str:
    """Its audit of captured forward passes."""
    import torchlens as lens

    said: list[str] = []

    class Audited:
        def begin(self, loop: Loop) -> None:
            self.look(loop, loop.batch(0, 0))

        def step(self, loop: Loop, loss: Tensor, batches: list[Any]) -> None:
            broken = not math.isfinite(float(loss)) and not said
            if broken or loop.number == loop.notes["last"]:
                self.look(loop, batches[0])

        def look(self, loop: Loop, batch: Any) -> None:
            audit = lens.debug.audit_trace(lens.trace(loop.model, batch[0]))
            said.extend(f"{finding.severity}: {finding.message}" for finding in audit.findings)

    loop.run(Audited())
    return "; ".join(said)


def runmedic(loop: Loop) -> str:
    """Its diagnosis of the run's log; notices ("info") do not count."""
    from runmedic import loaders, roles
    from runmedic.checks import run_checks

    lines: list[dict[str, float]] = []

    class Logging:
        norm = 0.0

        def begin(self, loop: Loop) -> None:
            clip = loop.clip

            def measured() -> None:
                norms = [p.grad.float().norm() for p in loop.model.parameters() if p.grad is not None]
                self.norm = float(torch.stack(norms).norm()) if norms else 0.0
                clip()

            loop.clip = measured

        def step(self, loop: Loop, loss: Tensor, batches: list[Any]) -> None:
            rate = loop.optimizer.param_groups[0]["lr"]
            line = {"step": loop.number, "train_loss": float(loss), "grad_norm": self.norm, "learning_rate": rate}
            if loop.number % 10 == 9:
                line["val_loss"] = loop.validation(16)
            lines.append(line)

    try:
        loop.run(Logging())
    except Exception as error:
        if not lines:
            return ""
        lines.append({"step": len(lines), "train_loss": math.nan})
        warnings.warn(f"the run ended with {error!r}", stacklevel=1)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        log.write_text("\n".join(json.dumps(line) for line in lines))
        said = [
            f"{finding.title}: {'; '.join([*finding.evidence, *finding.causes])}"
            for run in loaders.load(str(log))
            for finding in run_checks(run, roles.detect(run))
            if finding.severity != "info"
        ]
    return " | ".join(said)


LEAST = 50
"""Steps of a run here, or 30 more than the onset: what these tools see, they see at once or in a curve."""

TOOLS: dict[str, Callable[[Loop], str]] = {
    "PyTorch anomaly mode": anomaly_mode,
    "transformers underflow/overflow debugger": debugger,
    "TorchLens audit": torchlens,
    "runmedic": runmedic,
}


def look(case: Fault | Healthy, architecture: str, tool: Callable[[Loop], str]) -> str:
    """What the tool says of the run; a run that breaks by itself is not the tool's doing."""
    loop = case.loop(architecture, 0)
    limit = min(loop.settings.steps, max(LEAST, 30 + (case.onset if isinstance(case, Fault) else 0)))
    loop.notes["last"] = limit - 1
    loop.run = functools.partial(loop.run, steps=limit)
    try:
        return tool(loop)
    except (IndexError, RuntimeError, ValueError, AttributeError):
        return ""


def names_cause(name: str, said: str) -> bool:
    return bool(said) and re.search(CAUSES[name.split()[0]], said, re.IGNORECASE) is not None


def table(found: dict[str, dict[str, str]], tools: list[str]) -> str:
    faults = [name for name in found if isinstance(CASES[name], Fault)]
    healthy = [name for name in found if name not in faults]
    lines = ["| tool | faults it sees | whose cause it names | alarms on healthy runs |", "|---|---|---|---|"]
    for tool in tools:
        sees = [name for name in faults if found[name][tool]]
        names = [name for name in sees if names_cause(name, found[name][tool])]
        alarms = [name for name in healthy if found[name][tool]]
        lines.append(
            f"| {tool} | {listed(sees, len(faults))} | {listed(names, len(faults))} | {listed(alarms, len(healthy))} |"
        )
    return "\n".join(lines)


def listed(names: list[str], of: int) -> str:
    return f"{len(names)} of {of}" + (f": {', '.join(names)}" if names else "")


def here(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=words, default=[], help="names; else the first form of every fault")
    parser.add_argument("--architecture", default="plain")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    tools = [name for name, tool in TOOLS.items() if tool not in (torchlens, runmedic) or here(tool.__name__)]
    cases = [c for c in chosen(options.only) if c.ranks == 1 and options.architecture in c.architectures]
    if not options.only:
        cases = [case for case in cases if " " not in case.name]
    found: dict[str, dict[str, str]] = {}
    for case in track(cases, "cases", transient=True):
        found[case.name] = {tool: look(case, options.architecture, TOOLS[tool]) for tool in tools}
        if options.json:
            options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False))
    made = table(found, tools)
    if options.table:
        write_table(options.table, made, BEGIN, END)
    print(made)


if __name__ == "__main__":
    main()
