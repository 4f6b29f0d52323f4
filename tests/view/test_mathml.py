"""Every equation has MathML: of the catalogue, and of every operation as it is used."""

import re

import pytest

from limpid.equations.catalogue import entries
from limpid.mathml import mathml
from limpid.tracing.worked import opened
from limpid.view.step import of_entry, of_step


def test_every_equation_of_the_catalogue_has_mathml() -> None:
    lines = [line for one in entries() for line in (one.equation, *one.adjoint) if line]
    assert len(lines) > 200
    for line in lines:
        made = mathml(line)
        assert made.startswith("<math")
        assert made.endswith("</math>")
        assert not re.search(r"\\[A-Za-z]+|<merror|<script|javascript:", made), line


def test_every_equation_of_a_step_and_of_an_entry_is_there() -> None:
    with opened() as trace:
        found = of_step(trace.step)
        for one in trace.step.quantities:
            assert one.equation in found
            assert all(line in found for line in one.adjoint if line)
        assert all(line in found for rule in trace.step.update.rules for line in rule.equations)
        entry = trace.explain("logits[0, 0, 1]")
        assert entry.made is not None
        assert entry.made.equation in of_entry(entry)


def test_what_has_no_mathml_is_refused() -> None:
    with pytest.raises(ValueError, match="has no MathML"):
        mathml(r"x = \unknownmacro{y}")
