"""Facts of what a model is given, compared whatever the inputs are called and in whatever order they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from limpid.doctor.calls import LABEL_NAMES, Call
from limpid.doctor.data_sheet import is_table
from limpid.doctor.fact import Fact

BY_ROW, ALIKE = "row by row", "the same for each row"
"""Of an input: whether it tells rows apart. What does not, a mask of ones or places, a model may make by itself."""
Key = tuple[str, str]


def of_call(call: Call) -> Iterator[Fact]:
    """Of each tensor."""
    for name, tensor in call.tensors.items():
        if tensor.ndim and is_table(tensor):
            yield from _of_tensor(name, tensor.detach().cpu())


def _of_tensor(name: str, tensor: Tensor) -> Iterator[Fact]:
    rows = tensor.shape[0]
    if name not in LABEL_NAMES:  # the loss has facts of its own, wherever it is computed
        yield Fact("data", f"{name}: given", BY_ROW if bool((tensor != tensor[:1]).any()) else ALIKE, "given")
    form = f"{str(tensor.dtype).removeprefix('torch.')}, {tensor.ndim} axes"
    yield Fact("data", f"{name}: format", form, "if there")
    yield Fact("data", f"{name}: rows", rows, "if there", declared=True)
    if tensor.is_floating_point():
        yield Fact("data", f"{name}: deviation", float(tensor.double().nan_to_num().std(correction=0)), "size")
        yield Fact("data", f"{name}: share of zeros", float((tensor == 0).double().mean()), "share", rows)
    elif not tensor.is_complex():
        counted = tensor.flatten().long()
        values, counts = counted.unique(return_counts=True)
        yield Fact("data", f"{name}: below 0", bool(values[0] < 0), "if there")
        yield Fact("data", f"{name}: largest", int(values[-1]), "level")
        yield Fact("data", f"{name}: share of the commonest", int(counts.max()) / len(counted), "share", rows)


def under_names_of(then: Mapping[Key, Fact], now: Mapping[Key, Fact]) -> dict[Key, Fact]:
    """The later facts, inputs that have other names under those of the first without another that has their form."""
    forms_then, forms_now = _forms(then), _forms(now)
    gone = [name for name in forms_then if name not in forms_now]
    named: dict[str, str] = {}
    for name, form in forms_now.items():
        other = next((one for one in gone if forms_then[one] == form), None)
        if name not in forms_then and other is not None:
            gone.remove(other)
            named[name] = other
    return dict(_renamed(key, fact, named) for key, fact in now.items())


def _forms(facts: Mapping[Key, Fact]) -> dict[str, str]:
    return {
        name.removesuffix(": format"): str(fact.value)
        for (part, name), fact in facts.items()
        if part == "data" and name.endswith(": format")
    }


def _renamed(key: Key, fact: Fact, named: Mapping[str, str]) -> tuple[Key, Fact]:
    part, name = key
    owner, colon, what = name.partition(": ")
    if part != "data" or not colon or owner not in named:
        return key, fact
    return (part, f"{named[owner]}: {what}"), replace(fact, name=f"{named[owner]}: {what}")
