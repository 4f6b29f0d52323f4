"""`limpid tune`: a model that was trained before, taught to answer, to prefer, or to earn a reward."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from limpid.config import DataConfig, ModelConfig, RunConfig, ScheduleName, TrainConfig, TuneConfig, UpdateConfig
from limpid.config.domain import Count, NotNegative
from limpid.config.effect import require_not_adopted
from limpid.config.flags import given, options_of
from limpid.config.options import from_dict, hints
from limpid.config.options import shown as shown_value
from limpid.config.recipes import LONGEST, RATE, RELATIVE_RATES, USUAL_RELATIVE_RATE, WIDTH
from limpid.config.threads import require_threads
from limpid.config.tuning import KINDS, RolloutConfig
from limpid.errors import ConfigError
from limpid.files import user_path
from limpid.objectives.tuned import TUNED, Tuned

if TYPE_CHECKING:
    from limpid.training.callbacks import Callback

EVERYDAY = (
    "objective", "model_name", "paths", "lora", "epochs", "max_steps", "minutes", "name", "resume", "reward",
    "reward_weights", "num_generations", "num_iterations", "max_completion_length", "teacher", "beta", "loss_type",
    "vf_coef", "cliprange_value", "gamma", "lam", "learning_rate", "batch_size", "chat_template", "too_long",
    "skip_bad_rows", "reference", "context_length", "lora_rank", "base_precision", "validation", "eval_steps",
    "save_steps", "config", "seed", "report_to", "open",
)  # fmt: skip
"""What --help shows; --help-all shows the rest, in sections."""


@dataclass(frozen=True)
class TuneFlags:
    """Tune a model that was trained before, on records in JSONL, JSON, CSV or parquet, or on a dataset of the hub.

    limpid tune sft last chats.jsonl         learn answers, of messages too
    limpid tune dpo last pairs.jsonl --lora  the better of two: chosen, rejected
    limpid tune grpo last asked.jsonl --reward rewards.py:correct
    limpid tune dpo --help                   the options of dpo, too
    limpid tune --resume last
    """

    model_name: str | None = field(default=None, metadata={"positional": "MODEL"})
    """Run, RUN@STEP, Hugging Face folder or name, MODEL+ADAPTER."""
    lora: bool = False
    """Train factors of rank 16 beside every linear map, instead of all weights."""
    config: str | None = None
    """File of options: TOML, JSON or YAML; flags win over it."""
    minutes: float | None = None
    """Tune for so long on this machine."""
    name: str | None = None
    """Name of the run under runs/, or a path; the next free number when left out."""
    resume: str | None = None
    """Run to continue, bit for bit, or RUN@STEP from an earlier checkpoint; with --max-steps it is extended."""
    open: bool = False
    """Open the run in a browser as it is tuned, as `limpid serve` shows it; the page stays until Ctrl-C."""
    data: DataConfig = field(default_factory=DataConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    run: RunConfig = field(default_factory=RunConfig)


@dataclass(frozen=True)
class ShownData(DataConfig):
    paths: tuple[str, ...] = field(default=(), metadata={"positional": "DATA"})
    """Records: files, folders, globs, hf:NAME:CONFIG:SPLIT, or - for standard input."""


@dataclass(frozen=True)
class ShownRun(RunConfig):
    max_steps: Count = "one pass over the records"  # type: ignore[assignment]
    batch_size: Count = 16
    """Records of one micro-batch: answers, pairs, or prompts."""


def shown_sections(objective: str | None) -> dict[str, type[Any]]:
    """The sections with the defaults that tuning has: see config/recipes.py. They are shown, and never made."""
    context: Any = ("context_length", Count, f"the model's, at most {LONGEST:,}")
    rate = "by the objective and d_model, see docs/tuning.md"
    if objective is not None:
        relative = RELATIVE_RATES.get(objective, USUAL_RELATIVE_RATE)
        rate = f"{RATE * relative:g} · {WIDTH} / d_model, ten times it with low-rank factors"
    update: list[Any] = [
        ("learning_rate", NotNegative, rate),
        ("weight_decay", NotNegative, 0.0),
        ("schedule", ScheduleName, "linear"),
    ]
    return {
        "data": ShownData,
        "model": dataclasses.make_dataclass("ShownModel", [context], bases=(ModelConfig,), frozen=True),
        "update": dataclasses.make_dataclass("ShownUpdate", update, bases=(UpdateConfig,), frozen=True),
        "run": ShownRun,
    }


@dataclass(frozen=True)
class AnyFlags(TuneFlags):
    __doc__ = TuneFlags.__doc__

    objective: str | None = field(default=None, metadata={"positional": "OBJECTIVE"})
    """sft learns given answers; dpo, ipo and reward the better of two; kto good and bad ones; grpo, dr_grpo, dapo,
    gspo, cispo, rloo, reinforce_plus_plus and ppo the model's own, by a reward; distill the same, by a teacher."""


def verb(argv: Sequence[str]) -> int:
    from limpid.verbs.train import beside_page

    named = argv[0].replace("-", "_").replace("++", "_plus_plus") if argv else ""
    objective = named if named in KINDS else None
    words = " ".join(filter(None, ("tune", objective)))
    try:
        typed = given(words, flags_of(objective), argv[1:] if objective else argv, EVERYDAY)
    except ConfigError:
        _require_own(objective, argv)
        raise
    require_threads(typed.get("run", {}).get("threads", 0))
    began = time.perf_counter()
    return beside_page(typed.pop("open", False), lambda callbacks: _tuned(objective, typed, began, callbacks))


def _tuned(objective: str | None, typed: dict[str, Any], began: float, callbacks: Sequence[Callback]) -> int:
    """Tune as the options say, or go on with the run that they name."""
    from limpid.api import train
    from limpid.config.files import merged, read_options
    from limpid.config.recipes import TIMED, tuning
    from limpid.verbs.train import deadline_of, resumed, shown

    if typed.get("resume") is not None:
        return resumed(typed, callbacks)
    if objective is None:
        said = f", not {shown_value(typed['objective'])}" if "objective" in typed else ""
        raise ConfigError(
            f"tune wants an objective first{said}: one of {', '.join(KINDS)}, as in limpid tune sft last chats.jsonl"
        )
    own = ("model_name", "lora", "config", "minutes", "name")
    model, lora, file, minutes, name = (typed.pop(key, None) for key in own)
    if model is None or not typed.get("data", {}).get("paths"):
        raise ConfigError(f"tune {objective} wants a model and records: limpid tune {objective} last records.jsonl")
    if "init_from" in typed.get("run", {}):
        raise ConfigError("leave out --init-from: limpid tune OBJECTIVE MODEL DATA names the model")
    require_not_adopted(merged(typed, {"run": {"init_from": model}}))
    parts = {part: typed.pop(part) for part in ("options", "rollouts") if part in typed}
    typed = merged(typed, {"tune": {**typed.get("tune", {}), **parts}})
    options = typed if file is None else merged(read_options(user_path(file)), typed)
    options = options if minutes is None else merged(TIMED, options)
    config = from_dict(TrainConfig, tuning(objective, model, _sizes(model), options, bool(lora)))
    schedule = config.update.schedule
    deadline = None if minutes is None else deadline_of(began, minutes, options, schedule, tuned=True)
    return shown(lambda reporter: train(config, name, reporter, deadline, callbacks=callbacks))


def flags_of(objective: str | None) -> type[Any]:
    """The options of `limpid tune`, with those of one objective."""
    sections: list[tuple[str, Any, Any]] = [
        (name, kind, field(default_factory=kind)) for name, kind in shown_sections(objective).items()
    ]
    if objective is not None and dataclasses.fields(TUNED[objective].kind):
        kind = _preset(TUNED[objective])
        sections.append(("options", kind, field(default_factory=kind)))
    if objective is not None and KINDS[objective] == "prompts":
        sections.append(("rollouts", RolloutConfig, field(default_factory=RolloutConfig)))
    base = AnyFlags if objective is None else TuneFlags
    return dataclasses.make_dataclass(
        "TuneFlags", sections, bases=(base,), frozen=True, namespace={"__doc__": TuneFlags.__doc__}
    )


def _require_own(objective: str | None, argv: Sequence[str]) -> None:
    """Raise ConfigError for an option that only other objectives have."""
    options = {name: {one.field.name for one in options_of(flags_of(name))} for name in KINDS}
    for word in argv:
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        others = [other for other in KINDS if flag.startswith("--") and name in options[other]]
        if objective is not None and others and objective not in others:
            raise ConfigError(f"{flag} is an option of {', '.join(others)}: tune {objective} has none of that name")


def _preset(tuned: Tuned) -> type[Any]:
    """The options of an objective, with the defaults that its word sets."""
    kinds = hints(tuned.kind)
    changed = [(name, kinds[name], value) for name, value in tuned.preset.items()]
    return dataclasses.make_dataclass(tuned.kind.__name__, changed, bases=(tuned.kind,), frozen=True)


def _sizes(model: str) -> ModelConfig:
    from limpid.model.weights import sizes_of
    from limpid.source import find_model

    return sizes_of(find_model(model))
