"""What a new run may not ask for although each option is possible: what has no effect, or lies beyond the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpid.config.model import ModelConfig
from limpid.config.options import require, shown, to_dict
from limpid.config.sections import DataConfig, TrainConfig
from limpid.config.tuning import KINDS, TuneConfig
from limpid.errors import ConfigError

ADOPTED = ("model.", "data.tokenizer")
"""Options that --init-from takes from the model."""
CHOSEN_ANEW = (
    "dropout",
    "lora_rank",
    "lora_alpha",
    "lora_scaling",
    "use_dora",
    "init_lora_weights",
    "lora_dropout",
    "lora_targets",
    "base_precision",
)
"""Options of the model that a run which continues another one has of its own."""


def _by_wavelength(model: ModelConfig) -> bool:
    return model.rotary_scaling in ("llama3", "yarn")


NEEDED: dict[tuple[str, str], tuple[Callable[[Any], object], str]] = {
    ("model", "rotary_layout"): (lambda model: model.positions == "rotary", "positions rotary"),
    ("model", "rotary_scaling"): (lambda model: model.positions == "rotary", "positions rotary"),
    ("model", "rotary_factor"): (lambda model: model.rotary_scaling != "none", "a rotary_scaling"),
    ("model", "rotary_original_context"): (lambda model: model.rotary_scaling != "none", "a rotary_scaling"),
    ("model", "rotary_low"): (_by_wavelength, "rotary_scaling llama3 or yarn"),
    ("model", "rotary_high"): (_by_wavelength, "rotary_scaling llama3 or yarn"),
    ("model", "rotary_attention_factor"): (lambda model: model.rotary_scaling == "yarn", "rotary_scaling yarn"),
    ("model", "windowed_blocks"): (lambda model: model.attention_window, "an attention_window"),
    ("model", "lora_alpha"): (lambda model: model.lora_rank, "a lora_rank"),
    ("model", "lora_scaling"): (lambda model: model.lora_rank, "a lora_rank"),
    ("model", "use_dora"): (lambda model: model.lora_rank, "a lora_rank"),
    ("model", "init_lora_weights"): (lambda model: model.lora_rank, "a lora_rank"),
    ("model", "lora_dropout"): (lambda model: model.lora_rank, "a lora_rank"),
    ("model", "base_precision"): (lambda model: model.lora_rank, "a lora_rank"),
    ("run", "early_stopping"): (lambda run: run.eval_steps, "evaluations: eval_steps is 0"),
    ("update", "schedule_cycles"): (lambda update: update.schedule == "cosine_restarts", "schedule cosine_restarts"),
    ("update", "schedule_power"): (lambda update: update.schedule == "polynomial", "schedule polynomial"),
    ("update", "decay_fraction"): (
        lambda update: update.schedule == "warmup_stable_decay", "schedule warmup_stable_decay"),
}  # fmt: skip
"""Options that do nothing by themselves: whether there is what they need, and its name."""


def require_effect(config: TrainConfig, steps_are_known: bool = True) -> None:
    """Raise ConfigError for options that a new run would not notice."""
    data, update, run = config.data, config.update, config.run
    require(
        data.tokenizer_vocab_size is None or data.tokenizer == "bpe",
        f"tokenizer_vocab_size is {data.tokenizer_vocab_size}, but the vocabulary of tokenizer {data.tokenizer} is its "
        "own: leave one of them out",
    )
    require(
        not data.validation or data.validation_fraction == DataConfig().validation_fraction,
        f"validation_fraction is {data.validation_fraction}, and nothing is divided where validation names a text: "
        "leave one of them out",
    )
    for (section, name), (has_effect, with_what) in NEEDED.items():
        options = getattr(config, section)
        value, default = getattr(options, name), getattr(type(options), name)
        require(
            value == default or bool(has_effect(options)),
            f"{name} is {value}, which does nothing without {with_what}: give that too, or leave it out",
        )
    require(
        config.model.base_precision == "fp32" or run.precision != "fp64",
        f"base_precision is {config.model.base_precision}, which is read as float32, and precision is fp64: leave one "
        "of them out",
    )
    if config.tune is not None:
        _require_tune(config.tune)
    for options in to_dict(config).values():
        for name, value in options.items():
            for text in value if isinstance(value, list) else [value]:
                _require_writable(name, text)
    require(
        config.model.rotary_original_context != 0,
        "rotary_original_context is 0: give the context before stretching, tokens, or leave it out",
    )
    if not steps_are_known:
        return
    steps = run.max_steps
    require(
        update.warmup(steps) <= steps,
        f"warmup_steps is {update.warmup_steps}, and the run has {steps} steps: it would end before its learning rate "
        "is reached",
    )
    require(
        update.schedule != "cosine_restarts" or update.schedule_cycles <= steps,
        f"schedule_cycles is {update.schedule_cycles}, and the run has {steps} steps: a cycle takes one at least",
    )
    beyond = [step for step in run.record_steps if step > steps]
    require(not beyond, f"record_steps names step {max(run.record_steps, default=0)}, and the run has {steps} steps")


def _require_tune(tune: TuneConfig) -> None:
    """Raise ConfigError for options of another objective."""
    kind = KINDS[tune.objective]
    require(
        tune.reference is None or tune.objective not in ("sft", "reward", "distill"),
        f"reference is {tune.reference}, but {tune.objective} holds the model near to none: leave it out",
    )
    require(
        tune.rollouts is None or kind == "prompts",
        f"rollouts are for objectives that learn from the model's own answers, and {tune.objective} learns from given "
        "ones: leave them out",
    )
    teacher = tune.rollouts.teacher if tune.rollouts is not None else None
    require(
        teacher is None or tune.objective == "distill",
        f"teacher is {teacher}, but {tune.objective} imitates none: use distill, or leave it out",
    )


def _require_writable(name: str, value: Any) -> None:
    """Raise ConfigError for a text that config.toml, which is UTF-8, could not hold."""
    try:
        str(value).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} is {shown(value)}, which UTF-8 cannot hold, and a run's config.toml is UTF-8: rename it"
        ) from error


def require_not_adopted(typed: dict[str, Any]) -> None:
    """Raise ConfigError for typed options whose values --init-from brings."""
    if typed.get("run", {}).get("init_from") is None:
        return
    for section, options in typed.items():
        for name in options if isinstance(options, dict) else ():
            key = f"{section}.{name}"
            own = name in (*CHOSEN_ANEW, "context_length")  # the context as far as the model's positions allow
            require(
                own or not key.startswith(ADOPTED),
                f"the model to start from brings its sizes and tokenizer: leave out --{name.replace('_', '-')}",
            )
