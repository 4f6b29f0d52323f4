"""One step as one file that opens from the disk: the page, the documents and the arrays, without any request."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from limpid.files import write_atomically
from limpid.maths.operation import Array
from limpid.tracing import Trace
from limpid.tracing.mask import visible
from limpid.tracing.names import bare
from limpid.tracing.schema import to_json
from limpid.view import bundle, packed
from limpid.view.equations import equations_view
from limpid.view.step import step_view

POLICY = (
    "default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'none'; base-uri 'none'; form-action 'none'"
)


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
        f'<script type="application/octet-stream" id="{name}">{base64.b64encode(gzip.compress(part, 9, mtime=0)).decode()}'
        "</script>"
        for name, part in data.items()
    )
    title = f"step {trace.step.step:,} of {trace.step.run}"
    return bundle.document(head, f"{blocks}<script>{script}</script>", title=title)


def contents(trace: Trace) -> tuple[dict[str, Any], dict[str, Array]]:
    """What the page reads: documents as JSON, arrays by kind and name."""
    view = step_view(trace)
    values, gradients, after = arrays(trace)
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
    if packed.fits(trace):
        document["entries"], numbers = packed.packed(trace, values, gradients)
        document["update"] = packed.update(trace)
        tensors |= numbers
    return document, tensors


def arrays(trace: Trace) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Values and gradients by name; moments and parameters after the update by kind and name."""
    values, gradients, after = {}, {}, {}
    kinds = ("update",) if packed.fits(trace) else ("update", "m", "v")  # the page forms moments of a first update itself
    for name in trace.names():
        values[name] = trace.array(name)
        if trace.entries.gradient(name) is not None:
            gradients[name] = trace.array(f"grad({name})")
        for kind in kinds if trace.entries.learned(name) else ():
            if trace.tensor(f"{kind}({name})")[1] in trace.record.names:
                after[f"{kind}/{name}"] = trace.array(f"{kind}({name})")
    return values, gradients, after


def _hidden(trace: Trace, values: dict[str, Array]) -> dict[str, Array]:
    """Where the mask hides an entry: one matrix for all rows and heads."""
    found = {name: visible(trace.record, bare(name), array.shape) for name, array in values.items()}
    return {f"hidden/{name}": (~seen).astype(np.uint8) for name, seen in found.items() if seen is not None}


def safetensors(tensors: dict[str, Array]) -> bytes:
    """Arrays as the page reads them; whole numbers in 32 bits."""
    from safetensors.numpy import save

    narrow = {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in tensors.items()}
    return save({name: np.asarray(array, order="C") for name, array in narrow.items()})
