"""Models that keep something from one forward pass to the next, in every way that people keep it."""

from __future__ import annotations

import collections
import random
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, WIDTH, ROWS, LENGTH, STEPS = 19, 8, 6, 12, 5


SEEN: dict[str, int] = {"calls": 0}


TOTAL = 0


class Base(nn.Module):
    """A table, a layer between, a head; a subclass keeps something in `between`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.middle, self.head = (
            nn.Embedding(VOCAB, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, VOCAB),
        )

    def between(self, x: Tensor) -> Tensor:
        return torch.tanh(self.middle(x))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.between(self.table(ids)))

    def state(self) -> Any:
        """What the user would read."""
        return None


class Counter(Base):
    calls = 0

    def between(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().between(x)

    def state(self) -> Any:
        return self.calls


class ClassCounter(Base):
    calls = 0
    seen: ClassVar[list[int]] = []

    def between(self, x: Tensor) -> Tensor:
        ClassCounter.calls += 1
        self.seen.append(len(x))
        return super().between(x)

    def state(self) -> Any:
        return type(self).calls, list(self.seen)


class GlobalCounter(Base):
    def between(self, x: Tensor) -> Tensor:
        global TOTAL
        TOTAL += 1
        SEEN["calls"] += 1
        return super().between(x)

    def state(self) -> Any:
        return TOTAL, dict(SEEN)


class HelpedCounter(Base):
    def between(self, x: Tensor) -> Tensor:
        return helper(super().between(x))

    def state(self) -> Any:
        return list(helper.__defaults__[0]), vars(helper).get("calls")


def helper(x: Tensor, sizes: list[int] = []) -> Tensor:  # noqa: B006  such defaults are the case
    sizes.append(len(x))
    helper.calls = getattr(helper, "calls", 0) + 1  # type: ignore[attr-defined]
    return x


class Annealed(Base):
    temperature = 4.0

    def between(self, x: Tensor) -> Tensor:
        self.temperature = max(1.0, self.temperature * 0.9)
        return super().between(x) / self.temperature

    def state(self) -> Any:
        return self.temperature


class Cached(Base):
    """Keeps tensors, an array, a queue and a dictionary from call to call, and uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.past, self.masks = collections.deque(maxlen=3), {}
        self.memory, self.counts = torch.zeros(WIDTH), np.zeros(VOCAB)

    def between(self, x: Tensor) -> Tensor:
        self.memory.lerp_(x.detach().mean((0, 1)), 0.1)
        self.past.append(x.detach().mean())
        self.masks[x.shape] = self.masks.get(x.shape, 0) + 1
        self.counts[len(x)] += 1
        return super().between(x + self.memory + sum(self.past))

    def state(self) -> Any:
        return list(self.past), self.masks, self.memory, self.counts


class Averaged(Base):
    """Averages of weights: as a buffer, as a parameter that is not trained, as a tensor in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slow", self.middle.weight.detach().clone())
        self.slower = nn.Parameter(self.middle.weight.detach().clone(), requires_grad=False)
        self.slowest = [self.middle.weight.detach().clone()]

    def between(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for average in (self.slow, self.slower, self.slower.data, self.slowest[0]):
                average.lerp_(self.middle.weight, 0.01)
        return super().between(x) + 0.1 * x @ self.slow + 0.1 * x @ self.slower

    def state(self) -> Any:
        return self.slow, self.slower, self.slowest


class Clamped(Base):
    """Writes to its own weights in the forward pass."""

    def between(self, x: Tensor) -> Tensor:
        self.middle.weight.data.mul_(0.999)
        with torch.no_grad():
            self.head.weight.clamp_(-0.2, 0.2)
        return super().between(x)


class ShortRows(Base):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH, max_norm=0.5)


class OwnNoise(Base):
    """Draws from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.torch, self.numpy = torch.Generator().manual_seed(1), np.random.default_rng(1)
        self.legacy, self.python = np.random.RandomState(1), random.Random(1)

    def between(self, x: Tensor) -> Tensor:
        noise = self.numpy.random() + self.legacy.rand() + self.python.random() + random.random() + np.random.rand()  # noqa: NPY002
        return super().between(x + 0.1 * noise + 0.1 * torch.randn(x.shape, generator=self.torch))

    def state(self) -> Any:
        return self.torch.get_state(), self.numpy.random(), self.legacy.rand(), self.python.random()


class ListOfAuxiliaries(Base):
    """Collects a loss per call, which the loop takes: one too many would crash it."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary: list[Tensor] = []

    def between(self, x: Tensor) -> Tensor:
        self.auxiliary.append(x.pow(2).mean())
        return super().between(x)

    def state(self) -> Any:
        return len(self.auxiliary)


class Object:
    """Somebody's own way to keep numbers."""

    __slots__ = ("calls", "sizes")

    def __init__(self) -> None:
        self.calls, self.sizes = 0, []

    def note(self, x: Tensor) -> None:
        self.calls += 1
        self.sizes.append(len(x))


class Noted(Base):
    def __init__(self) -> None:
        super().__init__()
        self.notes, self.mock = Object(), Mock()

    def between(self, x: Tensor) -> Tensor:
        self.notes.note(x)
        self.mock(1)
        return super().between(x)

    def state(self) -> Any:
        return self.notes.calls, self.notes.sizes, self.mock.call_count


class SetsModes(Base):
    def between(self, x: Tensor) -> Tensor:
        torch.use_deterministic_algorithms(True)
        self.middle.eval() if self.middle.training else self.middle.train()
        return super().between(x)

    def state(self) -> Any:
        found = torch.are_deterministic_algorithms_enabled(), self.middle.training, torch.is_grad_enabled()
        torch.use_deterministic_algorithms(False)
        return found


class Printing(Base):
    def between(self, x: Tensor) -> Tensor:
        print("forward")
        return super().between(x)


class Shapeless(Base):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.LazyLinear(WIDTH)


class Normed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def between(self, x: Tensor) -> Tensor:
        return self.norm(super().between(x).flatten(0, 1)).view(x.shape)


class Dropping(Base):
    def between(self, x: Tensor) -> Tensor:
        return F.dropout(super().between(x), 0.2, self.training)


def batch(number: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(number))
    return ids[:, :-1], ids[:, 1:]


def loss_of(model: Any, given: Any) -> Tensor:
    loss = F.cross_entropy(model(given[0]).flatten(0, 1), given[1].flatten())
    if isinstance(getattr(model, "auxiliary", None), list):
        (auxiliary,) = model.auxiliary
        model.auxiliary.clear()
        loss = loss + 0.01 * auxiliary
    return loss


def forget() -> None:
    """Begin anew, as a new process would."""
    global TOTAL
    TOTAL = 0
    SEEN["calls"] = 0
    ClassCounter.calls = 0
    ClassCounter.seen.clear()
    helper.__defaults__[0].clear()  # type: ignore[index]
    vars(helper).clear()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
