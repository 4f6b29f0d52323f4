"""What a model is made of, read from the module itself: whoever wrote it, however it is wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

NORM_WORDS = ("norm", "ln_", ".ln", "layernorm", "rmsnorm")
TIE_FLAGS = ("tie_word_embeddings", "tie_weights", "tied", "weight_tying", "tie_embeddings")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module itself, without what compiles it or shares it among processes."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in (
            "DistributedDataParallel",
            "DataParallel",
            "FullyShardedDataParallel",
        ):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor that several share; any other tensor itself. Never waits for the others."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class ModelInfo:
    """Names, roles and sizes of a model's parts."""

    def __init__(self, model: nn.Module) -> None:
        self.outer, self.model = model, unwrapped(model)
        for known in ("names", "embedding_names", "norm_gains"):
            getattr(self, known)  # found now: sharding swaps parameters during a pass

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter once, by its first name."""
        return dict(self.model.named_parameters())

    @cached_property
    def names(self) -> dict[int, str]:
        """Name of each parameter by identity."""
        return {id(parameter): name for name, parameter in self.parameters.items()}

    @cached_property
    def core(self) -> nn.Module:
        """The one child that holds nearly all parameters, or the module itself."""
        total = sum(p.numel() for p in self.parameters.values())
        for child in self.model.children():
            listed = isinstance(child, nn.ModuleList | nn.ModuleDict)
            if total and not listed and sum(p.numel() for p in child.parameters()) > 0.95 * total:
                return child
        return self.model

    @cached_property
    def sharded(self) -> bool:
        """Whether processes hold parts of each parameter."""
        return any(hasattr(parameter, "full_tensor") for parameter in self.parameters.values())

    @cached_property
    def compiled(self) -> bool:
        """Whether the model or a part of it is compiled: in place, or as a function that it holds."""
        return (self.outer is not self.model and hasattr(self.outer, "_orig_mod")) or any(
            hasattr(value, "_torchdynamo_orig_callable") or (name == "_compiled_call_impl" and value is not None)
            for module in self.model.modules()
            for name, value in vars(module).items()
        )

    @cached_property
    def embedding(self) -> tuple[str, Tensor] | None:
        """The token table: the embedding with the most rows but for those of positions, or a matrix named like one."""
        tables = [
            (name, module.weight) for name, module in self.model.named_modules() if isinstance(module, nn.Embedding)
        ]
        if not tables:
            tables = [
                (name.rsplit(".", 1)[0], parameter)
                for name, parameter in self.parameters.items()
                if parameter.ndim == 2
                and any(word in name.lower() for word in ("tok", "wte", "embed"))
                and "pos" not in name.lower()
            ]
        # a short vocabulary has fewer rows than there are positions
        tokens = [table for table in tables if not self.of_positions(table[0])]
        return max(tokens or tables, key=lambda table: table[1].shape[0]) if tables else None

    @staticmethod
    def of_positions(name: str) -> bool:
        """Whether a table is called one of positions."""
        return any(word in name.lower() for word in ("pos", "wpe", "place"))

    @cached_property
    def embedding_names(self) -> set[str]:
        """Names of all parameters that are tables looked up by an index."""
        tables = {id(module.weight) for module in self.model.modules() if isinstance(module, nn.Embedding)}
        found = {name for name, parameter in self.parameters.items() if id(parameter) in tables}
        if self.embedding is not None and id(self.embedding[1]) in self.names:
            found.add(self.names[id(self.embedding[1])])
        return found

    def head(self, vocab: int) -> tuple[str, Tensor] | None:
        """The last matrix with one row (or column) per word that is not the token table's module."""
        table = self.embedding
        found = None
        for name, module in self.model.named_modules():
            weight = getattr(module, "weight", None)
            if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(module, nn.Embedding):
                continue
            if vocab in weight.shape and (table is None or name != table[0]):
                found = (name, weight)
        return found

    @cached_property
    def norm_gains(self) -> list[str]:
        """Names of gains of norms: vectors named weight in a module that is, or is called, a norm."""
        found = []
        for name, module in self.model.named_modules():
            kind = type(module).__name__.lower()
            if "norm" in kind or any(word in f".{name.lower()}" for word in NORM_WORDS):
                for leaf, parameter in module.named_parameters(recurse=False):
                    if parameter.ndim == 1 and leaf != "bias" and id(parameter) in self.names:
                        found.append(self.names[id(parameter)])
        return found

    @cached_property
    def blocks(self) -> list[tuple[str, nn.Module]]:
        """The repeated part: the longest list of modules of one class."""
        best: list[tuple[str, nn.Module]] = []
        for name, module in self.model.named_modules():
            if isinstance(module, nn.ModuleList | nn.Sequential):
                children = list(module.named_children())
                kinds = {type(child) for _, child in children}
                sized = sum(p.numel() for p in module.parameters())
                if (
                    len(children) > 1
                    and len(kinds) == 1
                    and sized > sum(p.numel() for _, m in best for p in m.parameters())
                ):
                    best = [(f"{name}.{key}" if name else key, child) for key, child in children]
        return best

    @property
    def first_mixing(self) -> str:
        """Where positions first meet."""
        return self.blocks[0][0] if self.blocks else "model"

    @cached_property
    def config(self) -> Any:
        """The model's own configuration, where it has one."""
        return getattr(self.model, "config", None)

    def declared(self, *names: str) -> Any:
        """The first of these that the configuration has."""
        for name in names:
            value = self.config.get(name) if isinstance(self.config, dict) else getattr(self.config, name, None)
            if value is not None:
                return value
        return None

    @cached_property
    def translates(self) -> bool:
        """Whether a decoder of its own reads other ids than the encoder: outputs belong to those."""
        return bool(self.declared("is_encoder_decoder"))

    @cached_property
    def dropout_modules(self) -> list[tuple[str, nn.Module]]:
        """Modules that drop with a probability above 0."""
        found = []
        for name, module in self.model.named_modules():
            if "drop" in type(module).__name__.lower():
                rate = next(
                    (
                        getattr(module, word)
                        for word in ("p", "rate", "drop_prob", "probability")
                        if hasattr(module, word)
                    ),
                    0,
                )
                if isinstance(rate, int | float) and rate > 0:
                    found.append((name, module))
        return found

    @cached_property
    def dropout_rate(self) -> float:
        """The largest probability with which anything is dropped, by module or by configuration."""
        rates = [
            float(getattr(m, w))
            for _, m in self.dropout_modules
            for w in ("p", "rate", "drop_prob", "probability")
            if hasattr(m, w)
        ]
        names = ("dropout", "attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob")
        rates += [float(v) for v in (self.declared(name) for name in names) if isinstance(v, int | float)]
        return max(rates, default=0.0)

    @cached_property
    def batch_norms(self) -> list[str]:
        return [
            name for name, module in self.model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
        ]

    @cached_property
    def device(self) -> torch.device:
        """Of the first parameter that has values: offloaded ones are on `meta`."""
        return next((p.device for p in self.parameters.values() if not p.is_meta), torch.device("cpu"))

    def block_of(self, name: str) -> str | None:
        """The block that a parameter or module belongs to."""
        for block, _ in self.blocks:
            if name == block or name.startswith(block + "."):
                return block
        return None

    def fresh_gains(self) -> tuple[int, int]:
        """How many gains of norms are exactly 1 (or, stored as an offset, 0) everywhere, and how many there are."""
        gains = [local(self.parameters[name].detach()) for name in self.norm_gains]
        return sum(bool((gain == 1).all()) or bool((gain == 0).all()) for gain in gains), len(gains)

    def fresh(self) -> bool:
        """Whether the weights look drawn, not trained: gains all equal and biases 0."""
        fresh, count = self.fresh_gains()
        biases = [p for name, p in self.parameters.items() if name.endswith("bias") and p.ndim == 1]
        if count:
            of_norms = [local(bias.detach()) for bias in biases if self.block_of_bias(bias)]
            return fresh == count and not any(bool(bias.any()) for bias in of_norms)
        return all(_gaussian_or_uniform(local(p.detach())) for p in self.parameters.values() if p.ndim == 2)

    def block_of_bias(self, bias: Tensor) -> bool:
        """Whether this bias sits in a norm: other biases may start anywhere."""
        name = self.names.get(id(bias), "")
        return any(name.rsplit(".", 1)[0] == gain.rsplit(".", 1)[0] for gain in self.norm_gains)


def shapes_like(parameters: dict[str, nn.Parameter], shape: torch.Size) -> Iterator[str]:
    """Names of the parameters of this shape."""
    return (name for name, parameter in parameters.items() if parameter.shape == shape)


def _gaussian_or_uniform(weight: Tensor) -> bool:
    """Whether entries are spread like a fresh draw: kurtosis of a Gaussian (3) or uniform (1.8) variable."""
    sample = weight.flatten()[:65536].float()
    spread = sample.std(correction=0)
    if not spread:
        return True
    kurtosis = float(((sample - sample.mean()) / spread).pow(4).mean())
    error = 5 * (24 / len(sample)) ** 0.5
    return abs(kurtosis - 3) < error + 0.05 or abs(kurtosis - 1.8) < error + 0.05
