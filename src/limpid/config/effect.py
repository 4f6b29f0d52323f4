"""What a new run may not ask for although each option is possible: what has no effect, or lies beyond the run."""

from __future__ import annotations

from typing import Any

from limpid.config.options import require
from limpid.config.sections import TrainConfig, UpdateConfig

ADOPTED = ("model.", "data.tokenizer")
"""Options that --init-from takes from the model."""
CHOSEN_ANEW = ("dropout", "lora_rank", "lora_alpha", "lora_targets")
"""Options of the model that a run which continues another one has of its own."""


def require_effect(config: TrainConfig, steps_are_known: bool = True) -> None:
    """Raise ConfigError for options that a new run would not notice.

    A warm-up of the default length may be longer than a short run: nobody asked for it.
    """
    data, update, run = config.data, config.update, config.run
    require(
        data.tokenizer_vocab_size is None or data.tokenizer == "bpe",
        f"tokenizer_vocab_size is {data.tokenizer_vocab_size}, but the vocabulary of tokenizer {data.tokenizer} is its "
        "own: leave one of them out",
    )
    model = config.model
    scaled = model.rotary_scaling != "none"
    require(
        not scaled or model.positions == "rotary",
        f"rotary_scaling is {model.rotary_scaling}, but positions are {model.positions}: it stretches rotary ones only",
    )
    require(
        scaled or model.rotary_factor == 1,
        f"rotary_factor is {model.rotary_factor}, but rotary_scaling is none: choose one, or leave the factor out",
    )
    require(
        model.rotary_original_context != 0,
        "rotary_original_context is 0: give the context before stretching, tokens, or leave it out",
    )
    require(
        model.windowed_blocks is None or model.attention_window is not None,
        "windowed_blocks names blocks, but there is no attention_window: give it too",
    )
    if not steps_are_known:
        return
    steps = run.max_steps
    require(
        update.warmup_steps <= steps or update.warmup_steps == UpdateConfig.warmup_steps,
        f"warmup_steps is {update.warmup_steps}, and the run has {steps} steps: it would end before its learning rate "
        "is reached",
    )
    require(
        update.schedule != "cosine_restarts" or update.schedule_cycles <= steps,
        f"schedule_cycles is {update.schedule_cycles}, and the run has {steps} steps: a cycle takes one at least",
    )
    beyond = [step for step in run.record_steps if step > steps]
    require(not beyond, f"record_steps names step {max(run.record_steps, default=0)}, and the run has {steps} steps")


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
                f"--init-from brings its model's sizes and tokenizer: leave out --{name.replace('_', '-')}",
            )
