"""Round 22b, mistakes in how weights that were learned before are taken over."""

from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    next_loss,
    train,
)
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome
from benchmarks.robustness.loops.round22b_parts import gates_reordered, slip
from torch import nn


@slip("r22b-gates-as-the-file-has-them")
def gates_as_the_file_has_them(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM that goes on from weights of an ONNX file. There the four gates stand as input, output,
    forget, cell; torch has input, forget, cell, output. They are loaded as they stand, as all shapes fit. The twin puts
    them in torch's order. Judged on other texts of the new kind."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    before = Reader(12, core=nn.LSTM)
    taught(before, lambda: language.rows(24, 24), next_loss, 200)
    file = gates_reordered(before.state_dict(), [0, 3, 1, 2])
    net = Reader(12, core=nn.LSTM)
    net.load_state_dict(file if wrong else gates_reordered(file, [0, 2, 3, 1]))
    new = near(language, seed + 1, 0.2)
    text_outcome(run, net, new)
    train(run, net, adam(net, 2e-3), lambda: new.rows(16, 24), next_loss, 100)
