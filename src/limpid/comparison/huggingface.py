"""transformers' model of a folder, run with hooks that record its modules' inputs and outputs under our names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limpid.comparison.observed import Observed
from limpid.comparison.variant import Tokens, Variant
from limpid.errors import ConfigError
from limpid.maths.rounding import FORMATS
from limpid.model.convert import unconverted
from limpid.published_names import INSIDE, JOINED, MODULE_INPUTS, OUTSIDE, place_in_block
from limpid.training.precision import FORMATS as DTYPES
from limpid.training.precision import NAMES

HEADS = ("attention.query", "attention.key", "attention.value", "attention.mixed")


def run(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Forward, loss and backward of transformers' model, attention written out."""
    model, recorder = opened(variant, seen)
    found = logits(model, recorder, tokens)
    log_p = F.log_softmax(found.float() if found.dtype != torch.float64 else found, -1)
    recorder.record("log_probabilities", log_p)
    loss = F.nll_loss(log_p.flatten(0, 1), targets.flatten())
    recorder.record("loss", loss)
    if backward:
        loss.backward()
        recorder.record_parameter_gradients(model)


def opened(variant: Variant, seen: Observed, *, rates: bool = False) -> tuple[Any, Recorder]:
    """transformers' model of the variant's folder, with a recorder attached; `rates` is for one that gives scores."""
    try:
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise ConfigError(f"{variant.label} needs transformers: pip install transformers") from error
    disable_progress_bar()
    dtype = DTYPES[variant.precision]
    kind = AutoModelForSequenceClassification if rates else AutoModelForCausalLM
    model = kind.from_pretrained(variant.source.path, dtype=dtype, attn_implementation="eager").eval()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # else the token that pads has no gradient, where it ends an answer too
    seen.kept = seen.compute = FORMATS[variant.precision]
    seen.roundings = 3  # a norm, a rotation, a gate are several kernels there, each of which rounds
    seen.summed = FORMATS[NAMES[torch.promote_types(dtype, torch.float32)]]
    recorder = Recorder(variant, seen)
    recorder.attach(model)
    return model, recorder


def logits(model: Any, recorder: Recorder, tokens: Tokens) -> Tensor:
    """Of every position, and the attention weights on the way."""
    found = model(tokens, output_attentions=True, use_cache=False)
    for block, weights in enumerate(found.attentions):
        recorder.record(f"blocks.{block}.attention.weights", weights)
    recorder.record("logits", found.logits)
    every: Tensor = found.logits
    return every


class Recorder:
    """Hooks that record values and the gradients with respect to them."""

    def __init__(self, variant: Variant, seen: Observed) -> None:
        self.variant, self.seen = variant, seen

    def record(self, name: str, value: Tensor) -> None:
        shape = value.shape
        if name.endswith(HEADS) and value.ndim == 3:
            shape = torch.Size((*value.shape[:2], -1, self.variant.config.sizes.d_head))
        self.seen.values[name] = value.detach().double().view(shape).numpy()
        self.seen.stored[name] = FORMATS[NAMES[value.dtype]]

        def keep(bar: Tensor) -> None:
            self.seen.gradients[name] = bar.double().reshape(shape).numpy()

        if value.requires_grad:
            value.register_hook(keep)

    def record_as(
        self, name: str, value: Tensor, laid_out: Callable[[Tensor], Tensor], slopes: Callable[[Tensor], Tensor] | None
    ) -> None:
        """A value in another layout than ours, and its gradient where that can be laid out like ours."""
        self.seen.record(name, laid_out(value))
        if slopes is not None and value.requires_grad:

            def keep(bar: Tensor) -> None:
                self.seen.gradients[name] = slopes(bar).double().numpy()

            value.register_hook(keep)

    def record_parameter_gradients(self, model: nn.Module) -> None:
        """Those of its parameters, under our names."""
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        for name, gradient in unconverted(gradients, self.variant.config).items():
            self.seen.gradients[name] = gradient.double().numpy()

    def attach(self, model: nn.Module) -> None:
        """Hooks on every module that has a name here."""
        for path, module in model.named_modules():
            inside = place_in_block(path)
            if inside:
                self._block(module, *inside)
            elif path in OUTSIDE and path != "lm_head":
                self._output(module, OUTSIDE[path])

    def _output(self, module: nn.Module, name: str) -> None:
        module.register_forward_hook(lambda _m, _i, out: self.record(name, _first(out)))

    def _block(self, module: nn.Module, block: int, place: str) -> None:
        at, name = f"blocks.{block}.", INSIDE.get(place) if place else "residual2"
        if name:
            self._output(module, at + name)
        if name in MODULE_INPUTS:
            within = at + MODULE_INPUTS[name]
            module.register_forward_pre_hook(lambda _m, given: self.record(within, given[0]))
        if place in JOINED:
            module.register_forward_hook(lambda _m, _i, out: self._fused(at, out))

    def _fused(self, at: str, out: Tensor) -> None:
        names = [f"{at}attention.{which}" for which in ("query", "key", "value")]
        heads = (*out.shape[:2], -1, self.variant.config.sizes.d_head)
        for name, part in zip(names, out.detach().split(self.variant.config.d_model, -1), strict=True):
            self.record(name, part)

        def keep(bar: Tensor) -> None:
            for name, part in zip(names, bar.double().split(self.variant.config.d_model, -1), strict=True):
                self.seen.gradients[name] = part.reshape(heads).numpy()

        out.register_hook(keep)


def _first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out
