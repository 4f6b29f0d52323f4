"""Functions of torch that no object owns, backward, clipping and losses: wrapped while somebody watches.

They report to every listener there is; the originals come back when the last one leaves.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import checkpoint

from limpid.doctor.contracts import CONTRACTS, Contract
from limpid.doctor.loop_listener import LoopListener

SCALING = ("scale", "unscale_", "step", "update")
"""What a loop asks of a scaler."""
LISTENERS: list[weakref.ref[LoopListener]] = []
"""Every listener there is. Models are watched as long as somebody holds them: nothing here keeps one alive."""
_every_update: list[Any] = []
"""The handle of the hook on every optimizer's updates."""
_originals: list[tuple[Any, str, Any]] = []
"""Functions that no object owns, as they were: (module, name, function)."""
OWN_CLIPPING = "limpid.training.update"
"""The module whose function clips where limpid's own kernel has formed the norm."""
BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
"""What torch.autograd.backward takes, in its order."""


def listen(listener: LoopListener) -> None:
    """Report to this one, too."""
    leave(None)
    _patch()
    LISTENERS.append(weakref.ref(listener))


def leave(listener: LoopListener | None) -> None:
    """Report nothing more to this one, nor to those that are gone; the last one leaves everything as it was."""
    LISTENERS[:] = [ref for ref in LISTENERS if ref() is not None and ref() is not listener]
    if not LISTENERS:
        while _originals:
            setattr(*_originals.pop())
        while _every_update:
            _every_update.pop().remove()


def _patch() -> None:
    """Wrap backward, clipping and losses, unless they are wrapped already."""
    if _originals:
        return
    _wrap(torch.autograd, "backward", BACKWARD, "on_backward", "on_backward_ended", only=("tensors", "inputs"))
    _wrap(clip_grad, "_clip_grads_with_norm_", ("parameters", "max_norm", "total_norm"), "on_clip")
    if OWN_CLIPPING in sys.modules:  # a run of limpid's
        _wrap(sys.modules[OWN_CLIPPING], "scale_down", ("parameters", "max_norm", "total_norm"), "on_clip")
    for place in (clip_grad, nn.utils):  # one function, by two names
        _wrap(place, "clip_grad_value_", ("parameters", "clip_value"), "on_clip_values", only=("clip_value",))
    _wrap(checkpoint, "check_backward_validity", ("inputs",), "on_checkpoint")
    for name in ("register_hook", "retain_grad"):
        _wrap(torch.Tensor, name, ("tensor",), "on_gradient_hook")
    _wrap(torch.autograd.graph.saved_tensors_hooks, "__enter__", ("hooks",), "on_saved_hooks")
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        _wrap(F, name, ("input", "target"), "on_difference", value="on_mean")
    given = ("input", "target", "weight", "size_average", "ignore_index")
    looked_at = ("input", "target", "ignore_index")
    _wrap(F, "cross_entropy", given, "on_loss", value="on_mean", only=looked_at)
    _wrap(F, "kl_div", ("input", "target"), "on_divergence", value="on_mean")
    _wrap(F, "binary_cross_entropy_with_logits", ("input", "target"), "on_binary", value="on_mean")
    for contract in CONTRACTS:
        _wrap_contract(contract)
    for name in SCALING:
        _wrap_scaler(name)
    _every_update.append(register_optimizer_step_post_hook(_updated))


def _wrap_scaler(name: str) -> None:
    """Report a method of every scaler of torch's before it runs: a loop may use one that nobody gave to the doctor."""
    original = getattr(torch.amp.GradScaler, name)

    @functools.wraps(original)
    def wrapped(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        for ref in LISTENERS:
            if (listener := ref()) is not None:
                listener.on_scaler(scaler, f"scaler.{name}")
        return original(scaler, *args, **kwargs)

    _originals.append((torch.amp.GradScaler, name, original))
    setattr(torch.amp.GradScaler, name, wrapped)


def _updated(optimizer: Any, *_: Any) -> None:
    """Report an update of any optimizer of torch's, watched or not."""
    for ref in LISTENERS:
        if (listener := ref()) is not None:
            listener.on_other_update(optimizer)


def _wrap(
    owner: Any,
    name: str,
    parameters: tuple[str, ...],
    event: str,
    end: str = "",
    value: str = "",
    only: tuple[str, ...] = (),
) -> None:
    """Report the first arguments of a function, by position or name, to every listener before it runs, and its end.

    value   the event that is given what it returned, and its reduction
    only    the arguments that are reported, where not all are
    """
    original = getattr(owner, name, None)
    reported = only or parameters
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():  # compiled code holds the original alone
            given = dict(zip(parameters, args, strict=False)) | kwargs
            for ref in LISTENERS:
                if (listener := ref()) is not None:
                    getattr(listener, event)(*(given.get(parameter) for parameter in reported))
        result = original(*args, **kwargs)
        for ref in LISTENERS if end and not torch.compiler.is_compiling() else ():
            if (listener := ref()) is not None:
                getattr(listener, end)()
        for ref in LISTENERS if value and not torch.compiler.is_compiling() else ():
            if (listener := ref()) is not None:
                getattr(listener, value)(name, result, kwargs.get("reduction", "mean"))
        return result

    _originals.append((owner, name, original))
    setattr(owner, name, wrapped)


def _wrap_contract(contract: Contract) -> None:
    """Report the arguments of a function after it has run: they are only looked at."""
    original = getattr(contract.owner, contract.name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        for ref in () if torch.compiler.is_compiling() else LISTENERS:
            if (listener := ref()) is not None and listener.wants_arguments():
                listener.on_arguments(contract, args, kwargs, result)
        return result

    _originals.append((contract.owner, contract.name, original))
    setattr(contract.owner, contract.name, wrapped)
