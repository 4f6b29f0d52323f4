"""PyTorch's optimizers without what only a compiler needs."""

from __future__ import annotations

import inspect

import torch
from torch.optim import Optimizer


class Plain(Optimizer):
    """PyTorch decorates these to keep its compiler out, and imports it for that: a second of every start."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class AdamW(Plain, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class Adam(Plain, torch.optim.Adam):
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class SGD(Plain, torch.optim.SGD):
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
