"""Every fault the doctor knows, one file per family."""

from __future__ import annotations

from limpid.doctor.rule import Rule
from limpid.doctor.rules import configuration, data, distributed, graph, loss, numerics, optimisation

FAMILIES = (numerics, optimisation, data, graph, loss, distributed, configuration)

RULES: dict[str, Rule] = {rule.slug: rule for family in FAMILIES for rule in family.RULES}
