"""Answers of a server to every view: what it would send of runs that nobody trained."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import numpy as np

import limpid
from limpid.planning.figure import readable, shown
from limpid.planning.laws.scaling import LAWS, Law
from limpid.planning.options import Options
from limpid.tracing.schema import to_json
from limpid.view.folder import Folder
from limpid.view.plan import layouts
from limpid.view.slices import safetensors

Plain = dict[str, Any]
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


def row(name: str, **others: Any) -> Plain:
    """A run of the list."""
    plain = {
        "name": name, "state": "finished", "why": "", "step": 400, "max_steps": 400, "loss": 2.5, "eval_loss": None,
        "num_tokens": 1_638_400, "tokens_per_second": 21_000.0, "last_written": 1.7e9, "tags": [], "note": "",
        "findings": 0, "curve": {"x": [1, 100, 400], "y": [6.0, 3.0, 2.5]},
    }  # fmt: skip
    return plain | others


def runs(count: int) -> Plain:
    """A list of so many runs, the last written first."""
    found = [
        row(f"{at:03}", loss=2 + (at * 37 % count) / count, last_written=1.7e9 - at, findings=at % 7 == 0)
        for at in range(1, count + 1)
    ]
    found[0] |= {"state": "training", "step": 230, "tags": ["base"], "note": HOSTILE}
    found[1] |= {"loss": "nan", "state": "diverged", "tags": ["muon"]}
    return {"folder": "runs", "runs": found, "recordings": []}


FINDING = {
    "rule": "scores-overflow-half", "severity": "fault", "step": 180, "where": "blocks.1.attention",
    "says": f"attention scores reached 9.7e+04 > 65504 {HOSTILE}", "cause": "Queries and keys grew.",
    "fix": "Train in bf16.", "sure": 1.0, "refuted_by": "scores below 65504", "evidence": {"largest": 97000.0},
}  # fmt: skip


def overview(name: str, **others: Any) -> Plain:
    """One run."""
    plain = {
        "row": row(name), "parameters": 3_210_000, "best_eval_loss": 2.61,
        "config": {"model": {"d_model": 128, "norm": "rms"}, "update": {"learning_rate": 0.001 * int(name)}},
        "columns": ["loss", "eval_loss", "learning_rate", "grad_norm_before_clip", "tokens_per_second"],
        "recorded": [200, 400], "opened_first": 1, "opened_last": 400, "checkpoints": [200, 400],
        "best_checkpoint": 400,
        "findings": [FINDING, FINDING | {"rule": "slow-start", "severity": "notice", "step": None}],
        "samples": [{"step": 100, "prompt": "def ", "text": "self"}, {"step": 400, "prompt": "def ", "text": HOSTILE}],
        "after": "9-0-0",
    }  # fmt: skip
    return plain | others


def metrics(name: str, steps: int = 400) -> Plain:
    """Columns of a run; its loss is not a number for a while."""
    at = list(range(1, steps + 1))
    loss: list[Any] = [2 + 4 / math.sqrt(step) + 0.1 * math.sin(step * 7) for step in at]
    mean = [2 + 4 / math.sqrt(step) for step in at]
    loss[180:184] = ["nan"] * 4

    def column(values: list[Any], **others: Any) -> Plain:
        return {"x": at, "y": values, "low": None, "high": None, "step": at, "count": steps} | others

    held = at[24::25]
    return {
        "run": name, "along": "step", "after": "9-0-0",
        "columns": {
            "loss": column(loss),
            "mean_loss": column(mean, low=[y - 0.05 for y in mean], high=[y + 0.05 for y in mean]),
            "eval_loss": {"x": held, "y": [mean[x - 1] for x in held], "low": None, "high": None, "step": held,
                          "count": len(held)},
            "learning_rate": column([0.003 * min(1, step / 40) for step in at]),
            "grad_norm_before_clip": column([0.5 + 4 / step for step in at]),
            "tokens_per_second": column([21_000 + 300 * math.sin(step) for step in at]),
        },
    }  # fmt: skip


VOCABULARY = [" the", " self", "def", "\n", "(", HOSTILE, *(f" w{at}" for at in range(90))]


def logits(model: str, length: int) -> np.ndarray:
    """Scores of the next token after so many: others for each model."""
    return np.random.default_rng([len(model), length]).normal(0, 2, len(VOCABULARY)).astype("<f4")


def played(request: Plain) -> Plain:
    """What a model that draws its scores says of a prompt of words."""
    tokens = request.get("tokens") or [3 + at for at, _ in enumerate(request["prompt"].split())]
    scores = logits(request["model"], len(tokens))
    share = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    weights = np.random.default_rng(len(tokens)).dirichlet(np.ones(len(tokens)), (2, 4))
    likeliest = [int(at) for at in np.argsort(-scores, kind="stable")]
    return {
        "model": request["model"], "context_length": 64,
        "prompt": [{"id": one, "text": VOCABULARY[one], "probability": 0.1 if at else None}
                   for at, one in enumerate(tokens)],
        "next": [{"id": at, "text": VOCABULARY[at], "logit": float(scores[at]), "probability": float(share[at])}
                 for at in likeliest],
        "rest": 0.0, "entropy": 1.0, "attention": weights.tolist(),
        "logits": base64.b64encode(scores.tobytes()).decode(),
    }  # fmt: skip


def plan_form() -> Plain:
    """The fields of a plan."""
    kinds = {"device": "word", "precision": "word", "recompute": "choice"}
    names = ("device", "devices", "tokens", "context_length", "batch_size", "precision", "zero", "tensor", "pipeline",
             "recompute", "price", "gradient_accumulation_steps")  # fmt: skip
    defaults = vars(Options())
    return {
        "names": ["gpt2", "llama-3-8b"], "devices": ["a100", "h100"],
        "options": [{"name": name, "kind": kinds.get(name, "number"), "default": defaults[name], "about": f"{name}.",
                     "choices": ["none", "selective", "full"] if name == "recompute" else []} for name in names],
        "laws": [{"name": law.name, "source": law.source} | law.constants for law in LAWS if isinstance(law, Law)],
    }  # fmt: skip


def planned(request: Plain) -> Plain:
    """The plan itself: limpid makes it in milliseconds."""
    found = limpid.plan(request["what"], **request["options"])
    sections = [
        {
            "title": title,
            "figures": [
                {"source": "", "note": ""}
                | one.document()
                | {"shown": shown(one.value, one.unit), "readable": readable(one.equation), "why": one.why()}
                for one in figures
            ],
        }
        for title, figures in found.sections.items()
    ]
    rest = {"fits": found.fits, "advice": found.advice, "notes": found.notes, "limited": found.limited}
    return {"name": found.name, "sections": sections} | rest


def divided(request: Plain) -> Plain:
    """Ways to divide the plan."""
    found: Plain = to_json(layouts(Folder(Path()), request))
    return found


STEP = [("embed", "embedding", None), ("blocks.0.attention.scores", "attention", 0), ("blocks.0.mlp.up", "mlp", 0),
        ("blocks.1.attention.scores", "attention", 1), ("blocks.1.mlp.up", "mlp", 1),
        ("logits", "logits", None)]  # fmt: skip
"""Quantities of a step: name, station, block."""
SHAPE, AXES = [2, 8, 16], ["batch", "position", "d_model"]
SLICE = safetensors({"data": np.linspace(-1, 1, 8 * 16, dtype=np.float32)}, {})
"""What is sent of any array, whichever part is asked for."""
NAMES = {"forward": "{}", "backward": "grad({})", "update": "update({})"}


def compared() -> Plain:
    """Two steps of which one departs from the second block on."""
    rows = [
        {"name": form.format(name), "station": station, "block": block, "kind": kind, "shape": SHAPE, "axes": AXES,
         "relative": 1e-6, "largest": 0.01, "index": [1, 3, 5], "a": 1.25, "b": 1.26, "bound": 0.01, "not_finite": 0,
         "share": 40.0 if kind == "forward" and (block == 1 or name == "logits") else 0.2}
        for kind, form in NAMES.items() for name, station, block in STEP
    ]  # fmt: skip
    options = [{"name": "update.learning_rate", "a": 0.001, "b": 0.002}]
    return {"a": "001/400", "b": "002/400", "kind": "steps", "options": options, "same_batch": True, "alone": [],
            "notes": [], "bounds": "here", "loss": {"a": 2.31, "b": 2.32}, "rows": rows}  # fmt: skip


def changed() -> Plain:
    """A step of which the second block, and what follows it, changed."""
    rows = [
        {"name": form.format(name), "station": station, "block": block, "kind": kind, "shape": SHAPE, "axes": AXES,
         "index": [0, 3, 1], "before": 0.5, "after": 0.625, "largest": 0.125, "not_finite": 0,
         "relative": 0.0 if kind == "forward" and (block == 0 or name == "embed") else 0.25}
        for kind, form in NAMES.items() for name, station, block in STEP
    ]  # fmt: skip
    return {
        "result": "1",
        "loss": {"before": 2.3101, "after": 2.3177},
        "grad_norm": {"before": 1.5, "after": 1.75},
        "rows": rows,
    }


ANSWERS: Plain = {
    "runs": runs(12), "plan/form": plan_form(), "plan": planned, "plan/layouts": divided, "play": played,
    "compare": compared(),
    "what-if": lambda request: changed(), "what-if/1/slice": SLICE, "compare/slice": SLICE,
    **{f"runs/{name}": overview(name) for name in ("001", "002")},
    **{f"runs/{name}/metrics": metrics(name) for name in ("001", "002")},
}  # fmt: skip
