"""What the changed loops of round 9b share. A fault's category and the patterns of a right diagnosis stand in
round9b_keys.json; categories are those of round8b_parts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import apart, judged, outcome
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round9b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["patterns"]))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (x + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))).relu()
        return out


class ResNet(nn.Module):
    """Two residual blocks over pictures of 8 by 8, the mean over places, dropout, a head."""

    def __init__(self, width: int = 12, classes: int = 4, drop: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks, self.drop = nn.Sequential(Residual(width), nn.MaxPool2d(2), Residual(width)), nn.Dropout(drop)
        self.head = nn.Linear(16 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(self.blocks(self.stem(x)).flatten(1)))
        return out


def tiny_vit(classes: int = 4, **options: Any) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    settings: dict[str, Any] = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 32}
    settings |= {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "num_labels": classes}
    return ViTForImageClassification(ViTConfig(**(settings | options)))


def seen(model: Any, batch: Any) -> Tensor:
    """Cross-entropy of a vision transformer of transformers on pictures and classes."""
    return F.cross_entropy(model(pixel_values=batch[0]).logits, batch[1])


def picture_outcome(run: Run, model: nn.Module, check: tuple[Tensor, Tensor], loss: Any) -> None:
    outcome(run, lambda: judged(model, lambda: loss(model, check)))


def accelerator() -> Any:
    """A new one, whatever ran before."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    return Accelerator(cpu=True)


def padded_rows(language: Any, count: int, length: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Texts of unequal lengths, filled up with zeros, and the next words, -100 where there is none: (count, length - 1)."""
    rows = language.rows(count, length, own)
    sizes = torch.randint(length // 4, length + 1, (count, 1), generator=own)
    kept = torch.arange(length) < sizes
    return (rows * kept)[:, :-1], rows.masked_fill(~kept, -100)[:, 1:]


def summed(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy over all tokens that are asked for."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=-100, reduction="sum")


def answer_log(model: Any, rows: Tensor, start: int = 4) -> Tensor:
    """Log probabilities of the tokens from `start` on, by a model of transformers: (rows,)."""
    scores = model(input_ids=rows[:, :-1]).logits.log_softmax(-1).gather(2, rows[:, 1:, None]).squeeze(2)
    return scores[:, start - 1 :].sum(1)


def margin(model: Any, good: Tensor, bad: Tensor) -> Tensor:
    return answer_log(model, good) - answer_log(model, bad)


def adapted(model: Any, **options: Any) -> Any:
    """PEFT's low-rank adapters on all projections of a Llama."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **options))


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def first_clipped(gradients: list[Tensor], bound: float) -> list[Tensor]:
    """Each row's gradients, (rows, ...), held to a norm and summed over the rows."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    share = (bound / (norms + 1e-6)).clamp(max=1)
    return [torch.einsum("r,r...->...", share, g) for g in gradients]


def by_row(model: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients of each row's cross-entropy, (rows, ...) by parameter, and the losses, (rows,)."""
    from torch.func import functional_call, grad_and_value, vmap

    def one(parameters: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (row[None],)), label[None])

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradients, losses = vmap(grad_and_value(one), in_dims=(None, 0, 0))(parameters, x, y)
    return list(gradients.values()), losses


def recitals(seed: int, count: int, own: torch.Generator | None = None) -> list[list[int]]:
    """Rows of words 4..15 of five to twenty words: the first is a title, and the title and the place decide each other."""
    table = torch.randint(4, 16, (12, 20), generator=apart(seed))
    table[:, 0] = torch.arange(4, 16)
    titles = torch.randint(0, 12, (count,), generator=own).tolist()
    sizes = torch.randint(5, 21, (count,), generator=own).tolist()
    return [table[t, :n].tolist() for t, n in zip(titles, sizes, strict=True)]
