"""The catalogue of equations as pages: one for each stage of the step, each equation drawn and with its source."""

from __future__ import annotations

from itertools import groupby

from limpid.equations.catalogue import STAGES, Entry, entries
from limpid.mathml import mathml
from prose import as_html, inline

HEAD = """# Equations

{count} equations, read off the code that computes them: each stands beside its forward and backward pass in
`src/limpid/maths`, is held against PyTorch, finite differences and published numbers, and is what `limpid trace` shows
at the station that uses it. Blue is the equation, red the gradient of the loss with respect to each input, where a bar
over a letter means ∂loss/∂letter.

```sh
limpid equations RMSNorm                  # one of them, in the terminal
limpid equations --paper Vaswani          # those of a paper
limpid equations --measure                # all of it measured now
```

"""


def pages() -> dict[str, str]:
    """Markdown by address."""
    every = entries()
    made = {"equations/index.md": _index(every)}
    for stage, found in groupby(every, key=lambda entry: entry.stages[0]):
        parts = "\n".join(map(_section, found))
        made[f"equations/{stage}.md"] = f"---\nsearch:\n  boost: 3\n---\n\n# {_title(stage)}\n\n{parts}"
    return made


def _title(stage: str) -> str:
    return stage.upper() if len(stage) == 3 else stage.capitalize()


def stages() -> list[str]:
    """Those that have a page, in the order of the step."""
    return [stage for stage in STAGES if any(entry.stages[0] == stage for entry in entries())]


def _index(every: tuple[Entry, ...]) -> str:
    parts = [HEAD.format(count=len(every))]
    for stage, found in groupby(every, key=lambda entry: entry.stages[0]):
        parts.append(f"## [{_title(stage)}]({stage}.md)\n\n| | | branch |\n|---|---|---|")
        for entry in found:
            link = f"[{entry.name}]({stage}.md#{entry.name.lower()})"
            parts.append(f"| {link} | {inline(entry.purpose)} | {entry.branch.value} |")
        parts.append("")
    return "\n".join(parts)


def _section(entry: Entry) -> str:
    _, _, rest = entry.text.partition("\n\n")
    drawn = [_drawn("forward", entry.equation), *(_drawn("backward", line) for line in entry.adjoint if line)]
    facts = f"{inline(entry.source)} · {entry.branch.value} · <code>{entry.file}:{entry.line}</code>"
    return "\n\n".join(
        [
            f"## {entry.name} {{ #{entry.name.lower()} }}",
            f"<p>{inline(entry.purpose)}</p>",
            *drawn,
            *([as_html(rest)] if rest else []),
            f'<p class="source">{facts} · <code>{inline(entry.signature)}</code></p>',
            "",
        ]
    )


def _drawn(kind: str, latex: str) -> str:
    return f'<div class="equation {kind}" data-search-exclude>{mathml(latex)}</div>'
