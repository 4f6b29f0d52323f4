"""The forward pass of a step without any rounding, beside it: what the account of the loss has from there.

With f a call in float64, x its inputs as the engine had them, x* without any rounding since the step began, and x°
with the values alone without rounding that take no part in the gradient (rotary tables, masks, the inner steps of a
custom Function), its result y is off by

    y - y* = [y - f(x)] + [f(x) - f(x°)] + [f(x°) - f(x*) - J (x° - x*)] + J (x° - x*):

its own rounding; what it inherits; what is beyond the first order; and what calls before it have in their accounts
already, J being along what takes part. All three are weighed with the gradient that comes to y.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from limpid.adjoints.aten import DRAWN, mapped, short_name
from limpid.operations.call import Call
from limpid.operations.gradients.again import again, follow, given_to, is_view
from limpid.operations.gradients.entry import Entry, is_fraction, is_plain
from limpid.operations.gradients.memory import Exact, place_of
from limpid.operations.gradients.rules import functions

MOST = 1 << 29
"""Bytes without rounding that are held of values that take no part in the gradient."""
SWEEP = 64
"""Calls after which memory that is no more is let go of."""
LINEAR = ("_to_copy", "_unsafe_view", "cat", "clone", "copy", "embedding", "gather", "index", "index_select", "stack")
"""Movement whose fractions are given on as they come."""
Results = list[Tensor | None]


class Enters(NamedTuple):
    """What enters the account at a call beside its own rounding, for each of its results, in float32."""

    inherited: Sequence[Tensor | None]
    beyond: Sequence[Tensor | None]
    origin: Call  # where what is inherited began


class Unrounded:
    """Filled while a step is taken, call by call; of memory that is let go of, nothing is held."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.whole = Exact()  # x*
        self.apart = Exact()  # x°, of what takes no part
        self.origins: dict[int, Call] = {}  # of memory of x° that is another than the engine's
        self.count = 0
        # Which of PyTorch's layers answer a call where nobody looks at it: below autograd, derivatives are left out.
        self.keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    def forget(self, entry: Entry) -> None:
        """A call that is not followed, such as those of the update: what it wrote is the engine's."""
        self._sweep()
        for view in entry.results:
            self.whole.forget(view)
            self.apart.forget(view)

    def follow(self, entry: Entry, call: Call, takes_part: bool) -> Enters | None:
        """A call of the forward pass that was just made."""
        self._sweep()
        if is_view(entry):
            return None
        is_too_large = self.apart.size + sum(8 * one.numel() for one in entry.results) > MOST
        if not takes_part and (is_too_large or self._is_weight(entry)):
            self.forget(entry)
            return None
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
                return self._part(entry, call) if takes_part else self._apart(entry, call)
        except Exception:
            self.forget(entry)
            return None

    def _apart(self, entry: Entry, call: Call) -> Enters | None:
        given = (self.origins[place_of(one)] for one in _plain(entry) if self._begins(one))
        origin = next(given, call)
        follow(entry, self.whole)
        follow(entry, self.apart)
        for one in entry.made:
            if one is not None and self.apart.has(one) and bool((self.apart.view(one) != one).any()):
                self.origins.setdefault(place_of(one), origin)
        return None

    def _part(self, entry: Entry, call: Call) -> Enters | None:
        origin = next((self.origins[place_of(one)] for one in _plain(entry) if self._begins(one)), None)
        told = self._told(entry, origin is not None) if self._bends(entry) else None
        follow(entry, self.whole)
        for one in entry.made:
            if one is not None and self.apart.has(one):  # from here on its gradient tells what it is off by
                self.apart.view(one).copy_(one)
        if told is None:
            return None
        without = [self.whole.view(one) if one is not None and self.whole.has(one) else None for one in entry.made]
        engine, apart, linear = told
        inherited = [_less(a, b) for a, b in zip(engine, apart, strict=True)] if origin is not None else []
        came = [_less(a, b) for a, b in zip(apart, without, strict=False)]
        beyond = [_less(a, b) for a, b in zip(came, linear, strict=False)]
        return Enters(_kept(inherited), _kept(beyond), origin or call)

    def _told(self, entry: Entry, inherits: bool) -> tuple[Results, Results, Results] | None:
        """f(x), f(x°) and J (x° - x*); None where the call cannot be done again."""

        def engine(one: Tensor) -> Tensor:
            return given_to(entry, one)

        def apart(one: Tensor) -> Tensor:
            return self.apart.view(one) if self.apart.has(one) else given_to(entry, one)

        def along(one: Tensor) -> Tensor | None:
            if not (one.requires_grad and is_fraction(one) and self.whole.has(one)):
                return None
            off = apart(one).to(self.whole.view(one).dtype) - self.whole.view(one)
            return torch.where(torch.isfinite(off), off, 0)

        for function in functions(entry.operation, entry.made):
            try:
                with self._differentiated():
                    made = again(entry, function, engine, along=along).results
                    pairs = [None if one is None else forward_ad.unpack_dual(one) for one in made]
                    values = [None if one is None else one.primal for one in pairs]
                    linear = [None if one is None else _or_zero(one) for one in pairs]
                return values, again(entry, function, apart).results if inherits else values, linear
            except Exception:
                continue
        return None

    @contextmanager
    def _differentiated(self) -> Iterator[None]:
        """With forward derivatives."""
        with torch._C._ForceDispatchKeyGuard(*self.keys), forward_ad.dual_level():
            yield

    def _is_weight(self, entry: Entry) -> bool:
        """Whether it writes to a parameter: the loss is that of weights as the engine has them."""
        places = {place_of(view) for view, _ in entry.before}
        return bool(places) and any(place_of(one) in places for one in self.model.parameters() if is_plain(one))

    def _begins(self, one: Tensor) -> bool:
        return self.apart.has(one) and place_of(one) in self.origins

    def _bends(self, entry: Entry) -> bool:
        """Whether anything but what calls before have in their accounts can come of what came in."""
        if short_name(entry.operation) in DRAWN:
            return False
        met = [one for one in _plain(entry) if self.whole.has(one)]
        moves = short_name(entry.operation) in LINEAR and all(one.requires_grad for one in met)
        return bool(met) and not moves

    def _sweep(self) -> None:
        self.count += 1
        if self.count % SWEEP == 0:
            self.whole.sweep()
            self.apart.sweep()
            self.origins = {place: call for place, call in self.origins.items() if place in self.apart.of}


def _plain(entry: Entry) -> list[Tensor]:
    found = list[Tensor]()
    mapped([entry.args, list(entry.kwargs.values())], lambda one: found.append(one) if is_plain(one) else None)
    return found


def _less(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The difference, 0 where a number is none."""
    if one is None or other is None or not is_fraction(one) or one.numel() != other.numel():
        return None
    off = one - other.reshape(one.shape)
    return torch.where(torch.isfinite(off), off, 0)


def _kept(several: Results) -> Results:
    return [None if one is None else one.to(torch.complex64 if one.is_complex() else torch.float32) for one in several]


def _or_zero(pair: Any) -> Tensor:
    found: Tensor = torch.zeros_like(pair.primal) if pair.tangent is None else pair.tangent
    return torch.where(torch.isfinite(found), found, 0)
