"""transformers' model of a folder, its modules listened to under our names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limpid.compare.taken import Taken
from limpid.errors import ConfigError
from limpid.maths.rounding import FORMATS
from limpid.model.convert import unconverted
from limpid.training.precision import FORMATS as DTYPES
from limpid.training.precision import NAMES

if TYPE_CHECKING:
    from limpid.compare.ways import Way

OUTPUTS = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.output",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "attn.c_proj": "attention.output",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.output",
}
"""Modules of a block whose outputs have a name here."""
INPUTS = {
    "self_attn.o_proj": "attention.mixed",
    "attn.c_proj": "attention.mixed",
    "post_attention_layernorm": "residual1",
    "ln_2": "residual1",
    "mlp.down_proj": "mlp.hidden",
    "mlp.c_proj": "mlp.hidden",
}
"""Modules of a block whose inputs have one."""
HEADS = ("attention.query", "attention.key", "attention.value", "attention.mixed")


def take(one: Way, taken: Taken, tokens: Tensor, targets: Tensor, backward: bool) -> None:
    """Forward, loss and backward of transformers' model, attention written out."""
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise ConfigError(f"{one.spelled} needs transformers: pip install transformers") from error
    disable_progress_bar()
    dtype = DTYPES[one.precision]
    model = AutoModelForCausalLM.from_pretrained(one.source.path, dtype=dtype, attn_implementation="eager").eval()
    taken.kept = taken.compute = FORMATS[one.precision]
    taken.roundings = 3  # a norm, a rotation, a gate are several kernels there, each of which rounds
    taken.summed = FORMATS[NAMES[torch.promote_types(dtype, torch.float32)]]
    listener = Listener(one, taken)
    listener.attach(model)
    logits = model(tokens, output_attentions=True, use_cache=False)
    for block, weights in enumerate(logits.attentions):
        listener.see(f"blocks.{block}.attention.weights", weights)
    listener.see("logits", logits.logits)
    log_p = F.log_softmax(logits.logits.float() if dtype != torch.float64 else logits.logits, -1)
    listener.see("log_probabilities", log_p)
    loss = F.nll_loss(log_p.flatten(0, 1), targets.flatten())
    listener.see("loss", loss)
    if backward:
        loss.backward()
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        for name, gradient in unconverted(found, one.config).items():
            taken.gradients[name] = gradient.double().numpy()


class Listener:
    """Keeps what modules take and give, and the gradients that come back."""

    def __init__(self, one: Way, taken: Taken) -> None:
        self.way, self.taken = one, taken

    def see(self, name: str, value: Tensor) -> None:
        shape = value.shape
        if name.endswith(HEADS) and value.ndim == 3:
            shape = torch.Size((*value.shape[:2], -1, self.way.config.d_head))
        self.taken.values[name] = value.detach().double().view(shape).numpy()
        self.taken.stored[name] = FORMATS[NAMES[value.dtype]]

        def keep(bar: Tensor) -> None:
            self.taken.gradients[name] = bar.double().reshape(shape).numpy()

        if value.requires_grad:
            value.register_hook(keep)

    def attach(self, model: nn.Module) -> None:
        """Hooks on every module that has a name here."""
        for path, module in model.named_modules():
            parts = path.split(".")
            if parts[-1] in ("embed_tokens", "wte"):
                module.register_forward_hook(lambda _m, _i, out: self.see("embed.tokens", out))
            elif parts[-1] in ("ln_f",) or path == "model.norm":
                module.register_forward_hook(lambda _m, _i, out: self.see("final_norm", out))
            if len(parts) > 2 and parts[1] in ("layers", "h"):
                self._block(module, int(parts[2]), ".".join(parts[3:]))

    def _block(self, module: nn.Module, block: int, place: str) -> None:
        at = f"blocks.{block}."
        if place == "":
            module.register_forward_hook(lambda _m, _i, out: self.see(f"{at}residual2", _first(out)))
        if place in OUTPUTS:
            module.register_forward_hook(lambda _m, _i, out: self.see(at + OUTPUTS[place], _first(out)))
        if place in INPUTS:
            module.register_forward_pre_hook(lambda _m, given: self.see(at + INPUTS[place], given[0]))
        if place == "attn.c_attn":
            module.register_forward_hook(lambda _m, _i, out: self._fused(at, out))

    def _fused(self, at: str, out: Tensor) -> None:
        names = [f"{at}attention.{which}" for which in ("query", "key", "value")]
        heads = (*out.shape[:2], -1, self.way.config.d_head)
        for name, part in zip(names, out.detach().split(self.way.config.d_model, -1), strict=True):
            self.see(name, part)

        def keep(bar: Tensor) -> None:
            for name, part in zip(names, bar.double().split(self.way.config.d_model, -1), strict=True):
                self.taken.gradients[name] = part.reshape(heads).numpy()

        out.register_hook(keep)


def _first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out
