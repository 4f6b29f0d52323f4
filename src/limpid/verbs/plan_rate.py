"""`limpid plan rate`: which learning rate a run should have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.domain import Count, Positive
from limpid.config.effect import require_effect
from limpid.config.flags import given
from limpid.config.options import from_dict
from limpid.config.threads import require_threads
from limpid.errors import ConfigError
from limpid.files import user_path

COLUMNS, LINES = 100, 16
"""Size of the drawing in the terminal, at most."""
EVERYDAY = (
    "paths", "lowest", "highest", "sweep_steps", "output", "json", "config", "recipe", "optimizer", "batch_size",
    "context_length", "d_model", "num_layers", "num_heads", "precision", "init_from", "seed",
)  # fmt: skip


@dataclass(frozen=True)
class PlanRateFlags:
    """Which learning rate: the loss along rates that rise at every step, and the largest rate that stays stable.

    Takes the options of limpid train; nothing is kept but the picture that -o names.

    limpid plan rate book.txt --d-model 384
    limpid plan rate --config runs/001/config.toml -o rate.png
    """

    lowest: Positive = 1e-6
    """First rate of the sweep."""
    highest: Positive = 10.0
    """Last rate of the sweep, unless training breaks off before."""
    sweep_steps: Count = 200
    """Steps of the sweep, each at a larger rate."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """Picture to write, .png or .svg."""
    json: bool = False
    """Print one JSON document."""
    config: str | None = None
    """File of options: TOML, JSON or YAML; flags win over it."""
    recipe: str | None = None
    """Named set of options to start from: fast; file and flags win."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    run: RunConfig = field(default_factory=RunConfig)


def verb(argv: Sequence[str]) -> int:
    from limpid.config.files import merged, read_options
    from limpid.config.recipes import recipe

    typed = given("plan rate", PlanRateFlags, argv, EVERYDAY)
    require_threads(typed.get("run", {}).get("threads", 0))
    names = ("data", "model", "update", "run")
    sections: dict[str, Any] = {key: typed.pop(key) for key in names if key in typed}
    flags = from_dict(PlanRateFlags, typed)
    for section, name in (("update", "learning_rate"), ("update", "ema_decay"), ("run", "max_steps")):
        if name in sections.get(section, {}):
            raise ConfigError(f"plan rate tries rates by itself: leave out --{name.replace('_', '-')}")
    file = None if flags.output is None else user_path(flags.output)
    if file is not None and file.suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"--output is {flags.output!r}: expected a name that ends in .png or .svg")
    options = sections if flags.config is None else merged(read_options(user_path(flags.config)), sections)
    config = from_dict(TrainConfig, merged({} if flags.recipe is None else recipe(flags.recipe), options))
    require_effect(config, steps_are_known=False)
    return _show(flags, config)


def _show(flags: PlanRateFlags, config: TrainConfig) -> int:
    """Sweep, print, draw; 1 where no rate can be suggested."""
    from rich.text import Text

    from limpid.planning.rate_picture import draw, in_letters, lines
    from limpid.reporter import Reporter
    from limpid.training.allocator import keep_freed_memory
    from limpid.training.rate_sweep import rate_curve

    keep_freed_memory()
    with Reporter(flags.json) as reporter:
        curve = rate_curve(config, flags.lowest, flags.highest, flags.sweep_steps, reporter)
        reporter.close()
        console = reporter.console
        if not flags.json:
            coloured = console.color_system is not None and not console.no_color
            reporter.line(Text.from_ansi(in_letters(curve, min(console.width, COLUMNS), LINES, coloured)))
        for line in lines(curve):
            reporter.line(line)
        if flags.output is not None:
            reporter.line(f"written {draw(curve, user_path(flags.output))}")
        reporter.document(curve.document() | {"picture": flags.output})
    return 1 if curve.suggested is None else 0
