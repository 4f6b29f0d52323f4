"""What the changed loops of the eighth round, part a, share.

The category of a fault is the part of a training step in which the change lies:
data      what goes into the model: ids, features, masks, kinds of tokens, edges;
labels    which labels are taught, and which are left out;
model     architecture, weights at the start, forward pass;
loss      formula and reduction;
gradient  backward, clipping, accumulation, and where the graph is cut;
update    optimizer, rate, schedule, decay, averages.
"""

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import Language
from torch import Tensor, nn

DATA, LABELS, MODEL, LOSS, GRADIENT = "data", "labels", "model", "loss", "gradient"


def adam(model: nn.Module, rate: float = 5e-3) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)


def reseeded(other: bool) -> None:
    """Another start and another order, as when nobody keeps the seed."""
    if other:
        torch.manual_seed(torch.initial_seed() + 17)


def told(
    run: Run,
    model: nn.Module,
    batches: Callable[[], Any],
    loss: Callable[[Any], Tensor],
    steps: int,
    optimizer: Any = None,
) -> None:
    """A plain loop."""
    optimizer = optimizer or adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(steps):
        batch = batches()
        optimizer.zero_grad()
        value = loss(batch)
        value.backward()
        optimizer.step()
        doctor.step(value, batch)
        run.note(value)


def prepared(run: Run, net: nn.Module, data: Any, loss: Callable[[nn.Module, Any], Tensor], epochs: int) -> None:
    """accelerate's loop."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    model, optimizer, data = engine.prepare(net, adam(net), data)
    doctor = run.watch(model, optimizer)
    for _ in range(epochs):
        for batch in data:
            optimizer.zero_grad()
            value = loss(model, batch)
            engine.backward(value)
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)


def language(run: Run, words: int = 12, **options: Any) -> Language:
    return Language(run.draw.randrange(999), words, **options)


def bert(kind: str, **options: Any) -> Any:
    """A small BERT of transformers, without dropout unless asked for."""
    import transformers

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    settings |= {"intermediate_size": 64, "max_position_embeddings": 32, "initializer_range": 0.1}
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return getattr(transformers, kind)(transformers.BertConfig(**(settings | options)))


def shuffled(rows: Tensor, size: int = 12) -> Any:
    """A loader whose batches are tensors."""
    return torch.utils.data.DataLoader(rows, size, shuffle=True)  # type: ignore[arg-type]


def uneven(count: int, longest: int, shortest: int, own: torch.Generator | None = None) -> Tensor:
    """Lengths of rows; the first is the longest."""
    sizes = torch.randint(shortest, longest + 1, (count,), generator=own)
    sizes[0] = longest
    return sizes
