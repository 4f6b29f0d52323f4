"""`limpid plan --rehearse`: what one of many ranks would hold and send, and which way to divide the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.planning.options import Options
from limpid.terminal import say_json

if TYPE_CHECKING:
    from rich.console import Console


def shown(what: str | None, ranks: int, parallel: str | None, options: Options, as_json: bool, console: Console) -> int:
    """Every way that was tried, and the one to take; 1 when none fits the device."""
    from rich.text import Text

    from limpid.api.plans import rehearse
    from limpid.columns import Columns
    from limpid.planning.figure import shown as figure
    from limpid.reporter import Reporter
    from limpid.theme import HEADING, QUIET

    with Reporter(as_json, console=console) as reporter:
        found = rehearse(what, ranks, parallel, reporter, **options.chosen())
    if as_json:
        say_json(found.document())
        return 0 if found.chosen is not None else 1
    console.print(Text.assemble((found.name, HEADING), f" · {ranks:,} ranks, {found.batch}"))
    for note in found.notes:
        console.print(Text(note, QUIET))
    rows = [
        [Text(str(one.parallel)), *(Text(figure(size, "bytes")) for size in (*one.held.values(), one.peak)),
         Text(figure(one.sent_bytes, "bytes")), Text(f"{sum(sent.count for sent in one.sent):,}"),
         Text(figure(one.seconds(found.links) * 1e6 / one.tokens, "s"))]
        for one in found.tried
    ]  # fmt: skip
    titles = ("", "weights", "gradients", "optimizer", "peak", "sent", "messages", "sending, a million tokens")
    console.print(Columns(titles, rows, right=tuple(range(1, len(titles)))))
    console.print(Text("bytes of tensors of one rank in a step; sending: over "
                       f"{found.links.inside / 1e9:g} GB/s inside a node of {found.links.devices_per_node}, "
                       f"{found.links.between / 1e9:g} GB/s between nodes", QUIET))  # fmt: skip
    console.print(Text(found.why, HEADING))
    if parallel is not None:
        for sent in found.tried[0].sent:
            console.print(f"  {sent.count:,} × {sent.kind} among {sent.ranks}: {figure(sent.bytes, 'bytes')}")
    return 0 if found.chosen is not None else 1
