"""One step as one file that opens from the disk: the page, the documents and the arrays, without any request."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from limpid.errors import ConfigError
from limpid.files import write_atomically
from limpid.maths.operation import Array
from limpid.source import RecordedStep
from limpid.tracing import Trace
from limpid.tracing.lens import has_lens
from limpid.tracing.mask import visible
from limpid.tracing.names import bare
from limpid.tracing.schema import to_json
from limpid.view import bundle, packed
from limpid.view.addresses import of_step
from limpid.view.documents.step import EntryView, FindingsView
from limpid.view.equations import equations_view
from limpid.view.lens import lens_view
from limpid.view.located import located
from limpid.view.runs import findings_of
from limpid.view.step import entry_view, step_view

POLICY = (
    "default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'none'; base-uri 'none'; form-action 'none'"
)


def address(trace: Trace) -> str:
    """Where the page opens: the run's name and the step."""
    run = RecordedStep(trace.record.path).run
    return of_step(run.path.name if run is not None else "step", trace.step.step)


def write(trace: Trace, file: Path, *, home: str) -> None:
    """Write the file; `home` is the address that it opens at."""
    write_atomically(file, page(trace, home=home).encode())


def page(trace: Trace, *, home: str = "#/worked") -> str:
    """The file's text.

    Raises  ConfigError where the page was not built
    """
    document, tensors = contents(trace)
    document["home"] = home
    script = bundle.script("step")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = POLICY.format(digest=digest)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{bundle.style("step")}</style>'
    data = {
        "step": json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(),
        "arrays": safetensors(tensors),
        "equations": json.dumps(to_json(equations_view()), ensure_ascii=False, separators=(",", ":")).encode(),
    }
    blocks = "".join(
        f'<script type="application/octet-stream" id="{name}">{compressed(part)}</script>'
        for name, part in data.items()
    )
    title = f"step {trace.step.step:,} of {trace.step.run}"
    return bundle.document(head, f"{blocks}<script>{script}</script>", title=title)


def compressed(part: bytes) -> str:
    """Bytes as letters that HTML leaves alone."""
    return base64.b64encode(gzip.compress(part, 9, mtime=0)).decode()


def contents(trace: Trace) -> tuple[dict[str, Any], dict[str, Array]]:
    """What the page reads: documents as JSON, arrays by kind and name."""
    view = step_view(trace)
    whole = packed.fits(trace)
    values, gradients, after = arrays(trace, whole, all_of_them=whole or entries(trace) <= HELD)
    shapes = {name: array.shape for name, array in values.items()}
    places = {name: replace(place, shape=shapes[name]) for name, place in view.arrays.items() if name in shapes}
    rows = shapes["tokens"][0] if "tokens" in shapes else 0
    view = replace(view, arrays=places, tokens=view.tokens[:rows])
    tensors = {
        **{f"value/{name}": array for name, array in values.items()},
        **{f"gradient/{name}": array for name, array in gradients.items()},
        **after,
        **_hidden(trace, values),
    }
    document: dict[str, Any] = {
        "view": to_json(view), "links": packed.links(trace),
        "units": {link.name: trace.entries.unit(link.name, link.inputs) for link in trace.entries.links},
    }  # fmt: skip
    document |= read_out(trace, rows, positions=values["tokens"].shape[-1] if rows else 0)
    run = RecordedStep(trace.record.path).run
    if run is not None:
        document["findings"] = to_json(FindingsView(located(trace, findings_of(run))))
    if not whole:
        document["explained"] = {asked: to_json(found) for asked, found in strongest(trace)}
    else:
        document["entries"], numbers = packed.packed(trace, values, gradients)
        document["update"] = packed.update(trace)
        tensors |= numbers
    return document, tensors


LENS_ROWS = 4
"""Rows of the batch that a file holds the logit lens of."""


def read_out(trace: Trace, rows: int, positions: int) -> dict[str, Any]:
    """The logit lens of the rows that a file holds, where the step has one."""
    if not has_lens(trace.record):
        return {}
    return {"lens": [to_json(lens_view(trace, row, 0, positions)) for row in range(min(rows, LENS_ROWS))]}


HELD = 100_000
"""Entries of all arrays together that a file holds; of a larger step it holds a corner of each."""


def entries(trace: Trace) -> int:
    """How many numbers all arrays of a step have together."""
    return sum(math.prod(trace.record.shape(trace.tensor(name)[1])) for name in trace.names())


def arrays(trace: Trace, whole: bool, all_of_them: bool) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Values and gradients by name; moments and parameters after the update by kind and name.

    Of a step that is too large to be held whole, a corner of each: the first row of the batch, its first tokens.
    """
    values, gradients, after = {}, {}, {}
    kinds = ("update",) if whole else ("update", "m", "v")  # the page forms moments of a first update itself
    for name in trace.names():
        if trace.tensor(name)[1] not in trace.record.names:
            continue
        part = () if all_of_them else corner(trace.record.axes(name), trace.record.shape(trace.tensor(name)[1]))
        values[name] = held(trace, name, part)
        if trace.entries.gradient(name) is not None:
            gradients[name] = held(trace, f"grad({name})", part)
        for kind in kinds if trace.entries.learned(name) else ():
            if trace.tensor(f"{kind}({name})")[1] in trace.record.names:
                after[f"{kind}/{name}"] = held(trace, f"{kind}({name})", part)
    return values, gradients, after


SIDES = {"batch": 1, "position": 32, "query": 32, "key": 32, "head": 8}
"""How much of each axis a file holds of a large step; of every other one, SIDE."""
SIDE = 48
WAYS = 40
"""Entries of a large step that are written out: the strongest ways from the loss, a logit and a weight."""


def corner(axes: Sequence[str], shape: Sequence[int]) -> tuple[slice, ...]:
    """The part of an array that a file holds of a large step."""
    named = axes if len(axes) == len(shape) else [""] * len(shape)
    return tuple(slice(0, min(size, SIDES.get(axis, SIDE))) for axis, size in zip(named, shape, strict=True))


def held(trace: Trace, name: str, part: tuple[slice, ...]) -> Array:
    """An array, or a part of it, in 32 bits where the step has no more."""
    array = trace.array(name, part)
    is_exact = trace.record.format(trace.tensor(name)[1]) == np.float64
    return array if is_exact or array.dtype.kind == "i" else array.astype(np.float32)


def strongest(trace: Trace) -> Iterator[tuple[str, EntryView]]:
    """Entries along the strongest ways: from the loss and a logit back to the tokens, from a weight on to the loss."""
    moved = max(trace.step.parameters, key=lambda one: one.grad_norm, default=None)
    ahead = ["loss", "logits", *([] if moved is None else [f"grad({moved.name})"])]
    seen: set[str] = set()
    while ahead and len(seen) < WAYS:
        try:
            found = entry_view(trace, ahead.pop(0))
        except ConfigError:  # an objective without logits, or without this loss
            continue
        asked = found.entry.address.replace(" ", "")
        if asked in seen:
            continue
        seen.add(asked)
        yield asked, found
        on = [*found.entry.to_tokens[:8], *found.entry.to_loss[:8], *found.entry.came_from[:2]]
        ahead += [place.address for place in on]


def _hidden(trace: Trace, values: dict[str, Array]) -> dict[str, Array]:
    """Where the mask hides an entry: one matrix for all rows and heads."""
    found = {name: visible(trace.record, bare(name), array.shape) for name, array in values.items()}
    return {f"hidden/{name}": (~seen).astype(np.uint8) for name, seen in found.items() if seen is not None}


def safetensors(tensors: dict[str, Array]) -> bytes:
    """Arrays as the page reads them; whole numbers in 32 bits."""
    from safetensors.numpy import save

    narrow = {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in tensors.items()}
    return save({name: np.asarray(array, order="C") for name, array in narrow.items()})
