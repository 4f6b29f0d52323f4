"""Formats that an operation is tried in: how a number is rounded to one, and which operations a wish names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from limpid.errors import ConfigError

ALIASES = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "e4m3": "float8_e4m3fn",
           "e5m2": "float8_e5m2"}  # fmt: skip
OUTSIDE = "(loss)"
"""Where calls stand that are in no module but the whole model, such as those of the loss."""
KNOWN = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")}


@dataclass(frozen=True)
class Format:
    """One of 16 bits, in which operations compute; or of 8, to which factors of products are rounded, as hardware does
    (Micikevicius et al. 2022, arXiv:2209.05433): with one scale for each tensor, a power of two.
    """

    name: str

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = KNOWN[self.name]
        return found

    @property
    def is_of_factors(self) -> bool:
        return self.dtype.itemsize == 1

    def rounded(self, x: Tensor) -> Tensor:
        """The nearest numbers of the format, in the format of x; of 16 bits, what is too large becomes infinite."""
        if not self.is_of_factors:
            return x.to(self.dtype).to(x.dtype)
        largest = float(x.detach().abs().amax()) if x.numel() else 0.0
        if not 0 < largest < float("inf"):
            return x
        scale = torch.exp2(torch.ceil(torch.log2(torch.tensor(largest / torch.finfo(self.dtype).max)))).item()
        return (x / scale).to(self.dtype).to(x.dtype) * scale


def format_of(name: str) -> Format:
    """A format by PyTorch's name, or a short one.

    Raises  ConfigError
    """
    found = ALIASES.get(name, name)
    if found not in KNOWN:
        raise ConfigError(f"{name} is no format to try: expected one of {', '.join((*KNOWN, *ALIASES))}")
    return Format(found)


@dataclass(frozen=True)
class Wishes:
    """Which operations are to be of which format: by PATTERN of a module's path, or PATTERN:OPERATION; the last counts.

    A pattern fits the end of a path too, and all below: layers.3 and layers.3.* are model.layers.3 with its parts.
    """

    wishes: tuple[tuple[str, Format], ...]

    def format_of(self, module: str, operation: str) -> Format | None:
        """That of a call, None where it stays as it is."""
        fits = [form for pattern, form in self.wishes if _fits(pattern, module, operation)]
        return fits[-1] if fits else None

    def part_of(self, module: str, operation: str) -> tuple[str, Format] | None:
        """The outermost module that the same wish takes as a whole, and its format; or the operation by itself."""
        fits = [wish for wish in self.wishes if _fits(wish[0], module, operation)]
        if not fits:
            return None
        pattern, form = fits[-1]
        if ":" in pattern:
            return f"{module}:{operation}", form
        names = module.split(".")
        whole = (".".join(names[:n]) for n in range(len(names) + 1))
        return next((one for one in whole if _fits(pattern, one, operation)), module), form

    def require(self, calls: Iterable[tuple[str, str]]) -> None:
        """Raise ConfigError for a pattern that no call fits.

        calls  (module, operation)
        """
        known = list(dict.fromkeys(calls))
        for pattern, _ in self.wishes:
            if not any(_fits(pattern, *call) for call in known):
                modules = list(dict.fromkeys(module for module, _ in known if module))
                raise ConfigError(f"no operation stands in {pattern}: modules that compute are "
                                  f"{', '.join(modules[:6])}{', …' if len(modules) > 6 else ''}")  # fmt: skip


def wishes_of(wanted: Mapping[str, str]) -> Wishes:
    """From patterns and names of formats.

    Raises  ConfigError
    """
    expected = "expected a pattern and a format, such as {'layers.3.*': 'fp8'}"
    if not wanted:
        raise ConfigError(f"nothing to try: {expected}")
    if not isinstance(wanted, Mapping) or not all(isinstance(pattern, str) for pattern in wanted):
        raise ConfigError(f"formats is {wanted!r}: {expected}")
    return Wishes(tuple((pattern, format_of(name)) for pattern, name in wanted.items()))


def _fits(pattern: str, module: str, operation: str) -> bool:
    path, _, kind = pattern.partition(":")
    if kind and not fnmatchcase(operation, kind):
        return False
    path = path.removesuffix(".*") if path != ".*" else "*"
    if path == OUTSIDE:
        return not module
    parts = module.split(".")
    ends = (".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1))
    return path in ("", "*") or any(fnmatchcase(end, path) for end in ends)
