"""The catalogue of every equation, as the page shows it."""

from __future__ import annotations

from limpid.mathml import equations
from limpid.view.documents.equations import EquationDocument, EquationsView


def equations_view() -> EquationsView:
    """Every equation with its MathML."""
    from limpid.equations.catalogue import entries

    found = tuple(
        EquationDocument(
            one.name, one.kind, one.purpose, one.signature, one.equation, tuple(one.adjoint), one.branch.value,
            one.stages, one.source, one.file, one.line,
        )
        for one in entries()
    )  # fmt: skip
    return EquationsView(found, equations(line for one in found for line in (one.equation, *one.adjoint)))
