"""What the loops of round 14 share. A fault's category and the patterns of a right diagnosis stand in
round14_keys.json, what each loop is meant to do in round14_intents.json; categories are those of round8b_parts, and
tuning for fine-tuning, preferences and rewards.

round14_proofs.json repeats by `python -m benchmarks.robustness.prove round14`.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import Decoder, hf_arguments, watching
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round14_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class FromGPT2(nn.Module):
    """transformers' GPT-2 without its head, one of its states for a row, and a head for three topics."""

    def __init__(self, first: bool) -> None:
        from transformers import GPT2Config, GPT2Model

        super().__init__()
        settings: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 16}
        settings |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        settings |= {"bos_token_id": None, "eos_token_id": None}
        self.first, self.body, self.head = first, GPT2Model(GPT2Config(**settings)), nn.Linear(32, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        at = torch.zeros_like(input_ids[:, 0]) if self.first else attention_mask.sum(1) - 1
        logits = self.head(states[torch.arange(len(states)), at])
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class BothWays(nn.Module):
    """A GRU in both directions over a text; its last states, (2, rows, width), become one row for each text."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view, self.tokens = view, nn.Embedding(16, 16)
        self.core = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 3)

    def forward(self, ids: Tensor) -> Tensor:
        last = self.core(self.tokens(ids))[1]
        states = last.view(len(ids), -1) if self.view else last.transpose(0, 1).reshape(len(ids), -1)
        out: Tensor = self.head(states)
        return out


class ScaledTable(Decoder):
    """A small GPT whose word vectors are multiplied by `scale`, and whose head is the table of words."""

    def __init__(self, words: int, scale: float) -> None:
        super().__init__(words, layers=2)
        self.scale = scale
        nn.init.normal_(self.tokens.weight, std=32**-0.5)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.scale * self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, keep)
        out: Tensor = self.head(self.norm(x))
        return out


class Looked(torch.autograd.Function):
    """Rows of a table; on the way back each row gets the sum of the gradients of its places, or one of them."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, assigned: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.assigned = table.shape, assigned
        return table[ids]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        out, rows = gradient.new_zeros(ctx.shape), gradient.reshape(-1, ctx.shape[1])
        if ctx.assigned:
            out[ids.flatten()] = rows
        else:
            out.index_add_(0, ids.flatten(), rows)
        return out, None, None


class OwnTable(nn.Module):
    """A table of words with a backward pass of its own."""

    def __init__(self, weight: nn.Parameter, assigned: bool) -> None:
        super().__init__()
        self.weight, self.assigned = weight, assigned

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = Looked.apply(self.weight, ids, self.assigned)
        return out


class Ternary(nn.Linear):
    """A linear layer whose weights are -s, 0 or s as it computes (Ma et al. 2024), s their mean size."""

    def __init__(self, inner: nn.Linear, through: bool) -> None:
        super().__init__(inner.in_features, inner.out_features, bias=inner.bias is not None)
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        size = w.abs().mean()
        change = (w / size).round().clamp(-1, 1) * size - w
        return F.linear(x, w + (change.detach() if self.through else change), self.bias)


def replaced(model: nn.Module, new: Callable[[nn.Linear], nn.Module]) -> list[Any]:
    """Every linear layer within `model` gives way to a new one; the new ones."""
    out = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, new(child))
                out.append(getattr(parent, name))
    return out


class LowRank(nn.Module):
    """A frozen linear layer plus a product of two thin matrices, which `merge` adds to it for good."""

    def __init__(self, inner: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) / inner.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + x @ self.down.T @ self.up.T
        return out

    @torch.no_grad()
    def merge(self) -> None:
        self.inner.weight += self.up @ self.down


# tasks


def of_topic(y: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Texts of ten words 1 to 15, half of them from their topic's five, and a mask of ones."""
    ours = 1 + 5 * y[:, None] + torch.randint(0, 5, (len(y), 10), generator=own)
    others = torch.randint(1, 16, (len(y), 10), generator=own)
    ids = torch.where(torch.rand(len(y), 10, generator=own) < 0.5, ours, others)
    return ids, torch.ones_like(ids, dtype=torch.bool)


def panel(patients: int, own: torch.Generator, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Three columns, (12, patients, 3), and a reading that goes on from the patient's last one, (13, patients)."""
    x = torch.randn(12, patients, 3, generator=own)
    y = [2 * torch.randn(patients, generator=own)]
    for columns in x:
        y.append(0.9 * y[-1] + columns @ weights + 0.3 * torch.randn(patients, generator=own))
    return x, torch.stack(y)


def spans(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 16) ids: a question, 4 or 5, a separator, 1, and words 8 to 15 among which stand one to three words 16 or
    17, which answer question 4, and one to three words 18 or 19, which answer 5; the answer's first and last place."""
    ids = torch.randint(8, 16, (count, 16), generator=own)
    ids[:, 1] = 1
    question = torch.randint(0, 2, (count,), generator=own)
    ids[:, 0] = 4 + question
    order = torch.randint(0, 2, (count,), generator=own)
    place = torch.arange(16)
    start, end = torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.long)
    for kind in (0, 1):
        first = 2 + 7 * ((order + kind) % 2) + torch.randint(0, 4, (count,), generator=own)
        last = first + torch.randint(0, 3, (count,), generator=own)
        inside = (place >= first[:, None]) & (place <= last[:, None])
        ids = torch.where(inside, 16 + 2 * kind + torch.randint(0, 2, ids.shape, generator=own), ids)
        start, end = torch.where(question == kind, first, start), torch.where(question == kind, last, end)
    return ids, start, end


# trainers


def by_preference(run: Run, kind: str, model: Any, rows: list[dict[str, Any]], steps: int, **options: Any) -> Any:
    """TRL's trainer of preferences, watched, its reference a copy of the model."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    told, telling = watching(run, getattr(trl, f"{kind}Trainer"))
    settings: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_checkpointing": False, "bf16": False}
    arguments = hf_arguments(run, steps, kind=getattr(trl, f"{kind}Config"), **(settings | options))
    data, words = datasets.Dataset.from_list(rows), word_tokenizer(16)
    out = told(model=model, ref_model=copy.deepcopy(model), args=arguments, train_dataset=data, processing_class=words)
    out.add_callback(telling)
    out.remove_callback(transformers.PrinterCallback)
    return out
