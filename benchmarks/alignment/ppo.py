"""What TRL's and verl's PPO give on tensors of one's own: the numbers that tests/objectives/ppo.json holds.

`pip download --no-deps trl==1.12.0 verl==0.9.1`, unpacked: TRL has had no PPO since, and verl's functions need none of
what it installs. Both are read from their files: statements of a trainer's method, functions of a module.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).parents[2] / "tests" / "objectives" / "ppo.json"
OPTIONS = {"gamma": 0.97, "lam": 0.9, "cliprange_value": 0.2, "vf_coef": 0.1, "epsilon": 0.2}
Room = dict[str, Any]


def inputs() -> dict[str, list[list[float]]]:
    """Answers of several lengths, a few steps after they were drawn; float32."""
    rng = np.random.default_rng(8)
    mask = (np.arange(6) < np.array([[6], [3], [5], [1]])).astype(np.float32)
    old, rewards = rng.standard_normal(mask.shape), 0.05 * rng.standard_normal(mask.shape)
    rewards[np.arange(4), mask.sum(1).astype(int) - 1] += np.array([1.0, 0.0, 1.0, -1.0])
    log_p = -rng.gamma(2, 0.8, mask.shape)
    arrays = {
        "rewards": rewards, "old_values": old, "values": old + 0.3 * rng.standard_normal(mask.shape),
        "log_probabilities": log_p, "old_log_probabilities": log_p + 0.25 * rng.standard_normal(mask.shape),
        "mask": mask,
    }  # fmt: skip
    return {name: (array * mask).astype(np.float32).tolist() for name, array in arrays.items()}


def trl(folder: Path, given: dict[str, Tensor]) -> Room:
    """The lines of PPOTrainer.train: from rewards to advantages and returns, and from values to the loss."""
    tree = ast.parse((folder / "trl" / "experimental" / "ppo" / "ppo_trainer.py").read_text(encoding="utf-8"))
    helpers = functions(tree, "masked_mean", "masked_var", "masked_whiten")
    absent = given["mask"] == 0
    room = helpers | {
        "args": SimpleNamespace(cliprange=OPTIONS["epsilon"], **OPTIONS), "padding_mask": absent,
        "padding_mask_p1": absent, "values": given["old_values"], "rewards": given["rewards"],
        "responses": given["mask"],
    }  # fmt: skip
    run(tree, "lastgaelam = 0", "advantages = torch.masked_fill(advantages, padding_mask, 0)", room)
    room |= {
        "micro_batch_inds": slice(None), "mb_values": given["old_values"], "mb_return": room["returns"],
        "mb_advantage": room["advantages"], "vpred": given["values"], "mb_logprobs": given["old_log_probabilities"],
        "new_logprobs": given["log_probabilities"],
    }  # fmt: skip
    run(tree, "vpredclipped = ", "loss = pg_loss + args.vf_coef * vf_loss", room)
    return told(room["advantages"], room["returns"], given, room["vf_loss"], room["vf_clipfrac"]) | {
        "loss": room["loss"].item(), "gradients": slopes(room["loss"], given)
    }  # fmt: skip


def verl(folder: Path, given: dict[str, Tensor]) -> Room:
    """compute_gae_advantage_return and compute_value_loss."""
    helpers = ast.parse((folder / "verl" / "utils" / "torch_functional.py").read_text(encoding="utf-8"))
    names = ("clip_by_value", "masked_sum", "masked_mean", "masked_var", "masked_whiten")
    room = {"verl_F": SimpleNamespace(**functions(helpers, *names)), "Optional": Optional}
    tree = ast.parse((folder / "verl" / "trainer" / "ppo" / "core_algos.py").read_text(encoding="utf-8"))
    room = functions(tree, "compute_gae_advantage_return", "agg_loss", "compute_value_loss", room=room)
    advantages, returns = room["compute_gae_advantage_return"](
        given["rewards"], given["old_values"], given["mask"], OPTIONS["gamma"], OPTIONS["lam"]
    )
    loss, clipped = room["compute_value_loss"](
        given["values"], returns, given["old_values"], given["mask"], OPTIONS["cliprange_value"]
    )
    return told(advantages * given["mask"], returns * given["mask"], given, loss, clipped)


def functions(tree: ast.Module, *names: str, room: Room | None = None) -> Room:
    """Functions of a file as they stand there, without their decorators."""
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in found:
        node.decorator_list = []
    room = {"torch": torch} | (room or {})
    exec(compile(ast.Module(list(found), []), "elsewhere", "exec"), room)
    return room


def run(tree: ast.Module, first: str, last: str, room: Room) -> None:
    """Run the statements of a block, from the one that begins so to the one that reads so."""
    for node in ast.walk(tree):
        block = getattr(node, "body", None)
        said = [ast.unparse(one) for one in block] if isinstance(block, list) else []
        if last in said:
            start = next(index for index, one in enumerate(said) if one.startswith(first))
            assert isinstance(block, list)
            exec(compile(ast.Module(block[start : said.index(last) + 1], []), "elsewhere", "exec"), room)
            return
    raise LookupError(f"{last!r} stands nowhere in this file: take the versions that are named above")


def told(advantages: Tensor, returns: Tensor, given: dict[str, Tensor], loss: Tensor, clipped: Tensor) -> Room:
    return {
        "advantages": advantages.tolist(), "returns": returns.tolist(), "value_loss": loss.item(),
        "value_gradient": torch.autograd.grad(loss, given["values"], retain_graph=True)[0].tolist(),
        "val/clipfrac_avg": clipped.item(),
    }  # fmt: skip


def slopes(loss: Tensor, given: dict[str, Tensor]) -> dict[str, list[list[float]]]:
    names = ("values", "log_probabilities")
    found = torch.autograd.grad(loss, [given[name] for name in names])
    return {name: slope.tolist() for name, slope in zip(names, found, strict=True)}


def main(words: list[str]) -> None:
    """Write the numbers down: `FOLDER of trl 1.12.0` `FOLDER of verl 0.9.1`."""
    arrays = inputs()
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    for name in ("values", "log_probabilities"):
        given[name].requires_grad_()
    found = {"options": OPTIONS, "inputs": arrays, "trl 1.12.0": trl(Path(words[0]), given),
             "verl 0.9.1": verl(Path(words[1]), given)}  # fmt: skip
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"written {FILE}")
