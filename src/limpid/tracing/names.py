"""The quantity that a name means, in our words or in those of other tools."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from limpid.config.tuning import KINDS
from limpid.errors import ConfigError
from limpid.objectives.tuned import objective_of
from limpid.published_names import joined_parts, our_spellings
from limpid.quantities import parameters
from limpid.run import Run
from limpid.source import Checkpoint, open_source

BESIDE = ("rewards", "reference_log_probabilities")
"""What a batch of drawn answers may hold beside what its objective reads."""
AROUND = re.compile(r"(grad|m|v|ema|update)\((.+)\)")
"""What belongs to a parameter or quantity: its gradient, moments, moving average, value after the update."""


def bare(name: str) -> str:
    """The parameter or quantity that a name is about."""
    around = AROUND.fullmatch(name)
    return around.group(2) if around else name


def our_name(asked: str, known: Iterable[str]) -> str:
    """The quantity, parameter, gradient or moment that `asked` means.

    Raises  ConfigError with the nearest names
    """
    names = set(known)
    around = AROUND.fullmatch(asked)
    inner = around.group(2) if around else asked
    found = next((name for name in _spellings(inner, names) if name in names), None)
    if found is None:
        if "[" in asked or "]" in asked:
            raise ConfigError(f"{asked!r} is no name: an index stands behind it, in one pair of brackets: logits[0, 1]")
        parts = joined_parts(inner)
        if parts:
            raise ConfigError(f"{inner} holds {', '.join(parts[:-1])} and {parts[-1]}: ask for one of them")
        close = difflib.get_close_matches(inner, names, 3, 0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "--json lists every name"
        raise ConfigError(f"the step has no quantity {asked!r}: {hint}")
    return f"{around.group(1)}({found})" if around else found


def _spellings(asked: str, names: set[str]) -> Iterable[str]:
    yield asked
    yield from _in_the_only_block(asked, names)
    yield from our_spellings(asked)


def _in_the_only_block(asked: str, names: set[str]) -> Iterable[str]:
    """With one block there is no need to say which."""
    if not any(name.startswith("blocks.1.") for name in names):
        yield f"blocks.0.{asked}"


def require_known(what: str, asked: str) -> None:
    """Raise ConfigError, with the nearest names, for an array that no step of a run has: before one is redone.

    A recorded step, or a model, is left to whoever opens it.
    """
    source = open_source(what)
    run = source if isinstance(source, Run) else source.run if isinstance(source, Checkpoint) else None
    name = re.sub(r"\s*\[[^\]]*\]$", "", asked.strip())
    if run is None or "kept(" in name or (run.path / "own.json").is_file():  # known from the record alone
        return
    config = run.read_config()
    objective, model = objective_of(config.tune), config.model
    formed, learned = (one.name for one in objective.quantities(model)), (one.name for one in parameters(model))
    beside = BESIDE if config.tune is not None and KINDS[config.tune.objective] == "prompts" else ()
    our_name(name, [*objective.fields, *beside, *formed, *learned])
