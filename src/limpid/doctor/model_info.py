"""Names, roles and sizes of a model's parts, read from the module itself, however it is wrapped.

Parameters are those of the whole; a table of tokens, a head, blocks and what is declared are those of what is called.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

OF_WHAT_IS_CALLED = (
    *("embedding", "blocks", "blocks_are_parts", "config", "paddings", "translates"),
    *("dropout_modules", "dropout_rate", "has_experts", "batch_norms"),
)
"""What is looked up anew where another part turns out to be called."""
NORM_WORDS = ("norm", "ln_", ".ln", "layernorm", "rmsnorm")


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


def kept_by(module: nn.Module, name: str, default: Any = None) -> Any:
    """What a module keeps under a name; what it would have to compute is not asked for, which may change its state."""
    for own in (vars(module), module._parameters, module._buffers, module._modules):
        if name in own:
            return own[name]
    value = inspect.getattr_static(type(module), name, default)
    return default if hasattr(type(value), "__get__") else value


def weight_of(module: nn.Module) -> Tensor | None:
    """The weight that a module keeps; of a computed one what it is made from, for to ask for it would make it."""
    kept = module._parameters.get("weight", vars(module).get("weight"))
    parts = getattr(module._modules.get("parametrizations"), "_modules", {}).get("weight")
    if parts is not None:
        kept = next(iter(parts._parameters.values()), None)
    return kept if isinstance(kept, Tensor) else None


def _drop_rates(module: nn.Module) -> list[float]:
    found = [kept_by(module, word) for word in ("p", "rate", "drop_prob", "probability")]
    return [float(rate) for rate in found if isinstance(rate, int | float)]


def _size(parameters: Iterable[Tensor]) -> int:
    return sum(p.numel() for p in parameters if not is_lazy(p))


class ModelInfo:
    """Names, roles and sizes of a model's parts."""

    def __init__(self, model: nn.Module) -> None:
        self.outer, self.model = model, unwrapped(model)
        self._called: tuple[str, nn.Module] | None = None
        self._calls: set[int] = set()  # what the loop has called
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

    @property
    def shapeless(self) -> bool:
        """Whether a parameter waits for the first forward pass to learn its shape."""
        return any(is_lazy(parameter) for parameter in self.parameters.values())

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return _size(self.parameters.values())

    @property
    def called(self) -> nn.Module:
        """What the loop calls: the module itself, or a part of it, such as the model in a LightningModule."""
        return self.model if self._called is None else self._called[1]

    def is_called(self, module: nn.Module) -> None:
        """The loop calls this; of several parts what holds them all is what is called."""
        if id(module) in self._calls:
            return
        self._calls.add(id(module))
        names = {id(one): name for name, one in self.model.named_modules()}
        name = names.get(id(module), "")
        if self._called is not None:
            both = zip(name.split("."), self._called[0].split("."), strict=False)
            shared = itertools.takewhile(lambda pair: pair[0] == pair[1], both)
            name = ".".join(step for step, _ in shared)
        if name != ("" if self._called is None else self._called[0]):
            for role in OF_WHAT_IS_CALLED:
                vars(self).pop(role, None)
        self._called = name, self.model.get_submodule(name)

    def name_of(self, module: nn.Module) -> str:
        """What a part is called in the whole."""
        name = next((name for name, one in self.model.named_modules() if one is module), "")
        return name.removesuffix("._orig_mod") or type(module).__name__

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        """What is called and its parts, by their names in the whole."""
        return self.called.named_modules(prefix="" if self._called is None else self._called[0])

    @property
    def core(self) -> nn.Module:
        """The part that is called, or the one child that holds nearly all parameters, or the module itself."""
        return self.largest if self.called is self.model else self.called

    @cached_property
    def largest(self) -> nn.Module:
        """The one child that holds nearly all parameters, or the module itself."""
        total = self.size
        for child in self.model.children():
            listed = isinstance(child, nn.ModuleList | nn.ModuleDict)
            if total and not listed and _size(child.parameters()) > 0.95 * total:
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
            (name, weight)
            for name, module in self._parts()
            if isinstance(module, nn.Embedding) and (weight := weight_of(module)) is not None
        ]
        if not tables:
            tables = [
                (name.rsplit(".", 1)[0], parameter)
                for name, parameter in self.parameters.items()
                if parameter.ndim == 2
                and id(parameter) in {id(one) for one in self.called.parameters()}
                and any(word in name.lower() for word in ("tok", "wte", "embed"))
                and "pos" not in name.lower()
            ]
        # a short vocabulary has fewer rows than there are positions
        tokens = [table for table in tables if not self.of_positions(table[0])]
        return max(tokens or tables, key=lambda table: table[1].shape[0]) if tables else None

    @property
    def table(self) -> nn.Embedding | None:
        """The module that looks tokens up, if one does."""
        name = None if self.embedding is None else self.embedding[0]
        found = dict(self.model.named_modules()).get(name) if name is not None else None
        return found if isinstance(found, nn.Embedding) else None

    @property
    def table_rows(self) -> int | None:
        """Number of tokens that the token table knows."""
        return None if self.embedding is None else int(self.embedding[1].shape[0])

    @staticmethod
    def of_positions(name: str) -> bool:
        """Whether a table is called one of positions."""
        return any(word in name.lower() for word in ("pos", "wpe", "place"))

    @cached_property
    def embedding_names(self) -> set[str]:
        """Names of all parameters that are tables looked up by an index."""
        tables = {id(weight_of(module)) for module in self.model.modules() if isinstance(module, nn.Embedding)}
        names = {name for name, parameter in self.parameters.items() if id(parameter) in tables}
        if self.embedding is not None and id(self.embedding[1]) in self.names:
            names.add(self.names[id(self.embedding[1])])
        return names

    def head(self, vocab: int) -> tuple[str, Tensor] | None:
        """The last matrix with one row (or column) per word that is not the token table's module."""
        table = self.embedding
        head = None
        for name, module in self._parts():
            weight = weight_of(module)
            if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding):
                continue
            if vocab in weight.shape and (table is None or name != table[0]):
                head = (name, weight)
        return head

    @cached_property
    def norm_gains(self) -> list[str]:
        """Names of gains of norms: vectors named weight in a module that is, or is called, a norm."""
        gains = []
        for name, module in self.model.named_modules():
            kind = type(module).__name__.lower()
            if "norm" in kind or any(word in f".{name.lower()}" for word in NORM_WORDS):
                for leaf, parameter in module.named_parameters(recurse=False):
                    if parameter.ndim == 1 and leaf != "bias" and id(parameter) in self.names:
                        gains.append(self.names[id(parameter)])
        return gains

    @cached_property
    def blocks(self) -> list[tuple[str, nn.Module]]:
        """The repeated part: the longest list of modules of one class."""
        best: list[tuple[str, nn.Module]] = []
        for name, module in self._parts():
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

    @cached_property
    def blocks_are_parts(self) -> bool:
        """Whether lists of as many modules with matrices lie beside the blocks: each holds a part of every layer."""
        path = self.blocks[0][0].rpartition(".")[0] if self.blocks else ""
        if not path:
            return False
        beside = dict(self.model.get_submodule(path.rpartition(".")[0]).named_children())
        beside.pop(path.rpartition(".")[2])
        lists = [one for one in beside.values() if isinstance(one, nn.ModuleList) and len(one) == len(self.blocks)]
        return any(p.ndim >= 2 for one in lists for p in one.parameters())

    def learns(self, name: str) -> bool:
        """Whether any parameter requires a gradient of the module, or of the nearest one around it that has any."""
        while True:
            parameters = list(self.model.get_submodule(name).parameters())
            if parameters or not name:
                return any(p.requires_grad for p in parameters)
            name = name.rpartition(".")[0]

    @property
    def first_mixing(self) -> str:
        """Where positions first meet."""
        return self.blocks[0][0] if self.blocks else "model"

    def attention_name(self, index: int) -> str:
        """What the attention that was computed `index`-th is called: its block, where there is one."""
        return f"{self.blocks[index][0]} attention" if index < len(self.blocks) else f"attention {index}"

    @cached_property
    def config(self) -> Any:
        """The own configuration of what is called, or of the whole, where it has one."""
        return getattr(self.called, "config", None) or getattr(self.model, "config", None)

    def declared(self, *names: str) -> Any:
        """The first of these that the configuration has."""
        for name in names:
            value = self.config.get(name) if isinstance(self.config, dict) else getattr(self.config, name, None)
            if value is not None:
                return value
        return None

    @cached_property
    def paddings(self) -> set[int]:
        """Ids that the configuration or a table calls padding, or pads with: the end of text."""
        declared = [self.declared(name) for name in ("pad_token_id", "eos_token_id")]
        tables = [m.padding_idx for m in self.called.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        ids = [one for value in declared for one in (value if isinstance(value, list | tuple) else [value])]
        return {one for one in (*ids, *tables) if isinstance(one, int)}

    @cached_property
    def translates(self) -> bool:
        """Whether a decoder of its own reads other ids than the encoder: outputs belong to those."""
        return bool(self.declared("is_encoder_decoder"))

    @property
    def is_decoder(self) -> bool:
        """Whether the model calls itself one that predicts the next token, by an attribute or by its name."""
        declared = getattr(self.called, "is_decoder", None)
        if isinstance(declared, bool):
            return declared
        kind = type(self.called).__name__.lower()
        named = any(word in kind for word in ("causallm", "lmhead", "gpt", "llama"))
        return named and not any(word in kind for word in ("masked", "bert", "encoder"))

    @cached_property
    def dropout_modules(self) -> list[tuple[str, nn.Module]]:
        """Modules that drop with a probability above 0."""
        modules = []
        for name, module in self._parts():
            if "drop" in type(module).__name__.lower():
                rate = max(_drop_rates(module), default=0.0)
                if rate > 0:
                    modules.append((name, module))
        return modules

    @cached_property
    def dropout_rate(self) -> float:
        """The largest probability with which anything is dropped, by module or by configuration."""
        rates = [rate for _, module in self.dropout_modules for rate in _drop_rates(module)]
        names = ("dropout", "attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob")
        rates += [float(v) for v in (self.declared(name) for name in names) if isinstance(v, int | float)]
        return max(rates, default=0.0)

    @cached_property
    def has_experts(self) -> bool:
        """Whether rows may compete for experts with a capacity."""
        return any("expert" in name or "router" in name for name, _ in self._parts())

    @cached_property
    def batch_norms(self) -> list[str]:
        return [name for name, module in self._parts() if isinstance(module, nn.modules.batchnorm._BatchNorm)]

    @property
    def norms_of_the_batch(self) -> bool:
        """Whether batch norms keep no running statistics, so that they use the batch's own in evaluation mode too."""
        modules = dict(self.model.named_modules()) if self.batch_norms else {}
        return any(modules[name].running_mean is None for name in self.batch_norms if name in modules)

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
