"""Two recordings of one step, compared: python -m benchmarks.compared_recordings [--draws 40] [--seed 1] [--compiled].

Faults of 3% are planted in calls that the seed draws, among all that compute, of a small transformer; each has to be
named at its own call and nowhere else. Honest pairs (float32 against bfloat16 and float64, compiled) are rounding.
"""

import argparse
import contextlib
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from benchmarks.architecture_folders import ALL, TEXT, folder
from benchmarks.fault_tools import TOKENS, Net
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import limpid
from limpid.api.operations import trace_model
from limpid.errors import LimpidError
from limpid.operations import compare
from limpid.operations.kept import read

ARCHITECTURES = ("Phi3ForCausalLM", "GptOssForCausalLM", "XLNetLMHeadModel", "ModernBertForMaskedLM",
                 "M2M100ForConditionalGeneration", "Wav2Vec2ForCTC")  # fmt: skip


class Planted(TorchDispatchMode):
    """One call, by its number in the step, gives 3% more."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            if self.left == 0:
                (made[0] if isinstance(made, tuple | list) else made).mul_(1.03)
            self.left -= 1
        return made


def recorded(place: Path, planted: int = -1, compiled: bool = False, calls: bool = True) -> Path:
    """A step of a small transformer."""
    torch.manual_seed(0)
    net = Net()
    run: Any = torch.compile(net) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    # compiled code is passed over where anything of PyTorch looks on
    below = Planted(planted) if planted >= 0 else contextlib.nullcontext()
    with below, limpid.recording(run, optimizer, keep=place, calls=calls):
        functional.cross_entropy(run(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    return place


def planted(draws: int, seed: int, place: Path) -> str:
    """How many faults are named where they were planted."""
    plain = recorded(place / "plain")
    able = [
        call for call in read(plain).document.calls
        if call.check == "redone" and call.format == "float32" and call.worst is not None and call.worst.expected
    ]  # fmt: skip
    named, missed = 0, []
    for number, call in enumerate(random.Random(seed).sample(able, min(draws, len(able)))):
        found = compare(plain, recorded(place / f"{number}", call.number))
        wrong = [one for one in found.places if one.kind == "call"]
        same = [(one.name, one.module, one.phase, one.side) for one in wrong]
        if found.verdict == "beyond rounding" and same == [(call.operation, call.module, call.phase, "b")]:
            named += 1
        else:
            missed.append(
                f"{call.operation} in {call.module or 'no module'} ({call.phase}): {found.verdict} {same[:2]}"
            )
    return f"{named} of {draws} faults named at their call alone" + "".join(f"\n  missed: {one}" for one in missed)


def formats(place: Path) -> str:
    """Verdicts of honest pairs of formats."""
    lines = []
    for name in ARCHITECTURES:
        assert name in ALL
        folder(name, place / name)
        sides = {form: place / f"{name}-{form}" for form in ("fp32", "bf16", "fp64")}
        for form, side in sides.items():
            try:
                trace_model(place / name, TEXT, form, side)
            except LimpidError as error:
                lines.append(f"{name} {form}: {str(error)[-120:]}")
        for form in ("bf16", "fp64"):
            if (sides[form] / "recording.json").is_file():
                found = compare(sides["fp32"], sides[form])
                first = (
                    f": {found.places[0].kind} {found.places[0].name}, {found.places[0].said}" if found.places else ""
                )
                lines.append(f"{name} fp32 against {form}: {found.verdict}{first}")
    return "\n".join(lines)


def main() -> None:
    """Print what came of each."""
    parser = argparse.ArgumentParser(description="Two recordings of one step, compared.")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="compile the model too, which takes a minute")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        print(planted(given.draws, given.seed, Path(place)), flush=True)
        print(formats(Path(place)), flush=True)
        if given.compiled:
            compiled = recorded(Path(place) / "compiled", compiled=True, calls=False)
            print("eager against compiled:", compare(Path(place) / "plain", compiled).verdict)


if __name__ == "__main__":
    main()
