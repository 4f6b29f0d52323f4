"""Equations of papers, as code that can be asked: the value, the gradient, whether the gradient is right, the source.

python examples/read_an_equation.py
"""

import numpy as np
import torch

from limpid import maths
from limpid.latex import readable

# RMSNorm (Zhang & Sennrich 2019, eq. 4): an operation of the step, with its backward pass written by hand.
norm = maths.RMSNorm(eps=1e-6)
print(norm.source, *map(readable, (norm.equation, *norm.adjoint)), sep="\n  ")
rng = np.random.default_rng(0)
x, gain, y_bar = rng.standard_normal((3, 8)), rng.standard_normal(8), rng.standard_normal((3, 8))
y, saved = norm.forward(x, gain)
x_bar, gain_bar = norm.backward(y_bar, saved)

# The same gradient three times: by hand above, by PyTorch's autograd, by a finite difference along one direction.
theirs = torch.tensor(x, requires_grad=True)
torch.nn.functional.rms_norm(theirs, (8,), torch.tensor(gain), 1e-6).backward(torch.tensor(y_bar))
along, h = rng.standard_normal(x.shape), 1e-6
difference = ((norm.forward(x + h * along, gain)[0] - norm.forward(x - h * along, gain)[0]) * y_bar).sum() / (2 * h)
print(f"x̄ against autograd: {np.abs(x_bar - theirs.grad.numpy()).max():.1e} apart at most")
print(f"x̄ along a direction: {(x_bar * along).sum():.9f}, finite difference {difference:.9f}\n")

# DPO (Rafailov et al. 2023, eq. 7): where policy and reference agree the loss is ln 2, its gradient -β/2.
dpo = maths.dpo
chosen, rejected = -4.0, -6.0  # log-probabilities of the two answers, nats
pair = chosen, rejected, chosen, rejected
print(dpo.source, readable(dpo.equation), sep="\n  ")
print(f"  {float(dpo(*pair)):.6f} nats; its gradient to the chosen answer {float(dpo.backward(1.0, *pair)[0])}\n")

# AdamW (Loshchilov & Hutter 2019): one number moved by hand, line by line.
rule = maths.AdamW(weight_decay=0.1)
given = maths.UpdateInput(
    parameter=np.array([0.5]), gradient=np.array([0.02]), moments={"m": np.zeros(1), "v": np.zeros(1)},
    learning_rate=1e-3, number=1, decayed=True,
)  # fmt: skip
print(rule.source)
for line in rule.derivation(given, (0,)):
    print(" ", line)
