"""What is said of a run before its first step."""

from __future__ import annotations

import torch

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.options import as_typed, to_dict
from limpid.config.sections import USUAL_WARMUP
from limpid.data.token_splits import Tokens
from limpid.data.tuning.examples import Examples
from limpid.data.validation import validation_sets
from limpid.objectives import to_document
from limpid.objectives.named import NAMED
from limpid.planning import parameter_count
from limpid.terminal import counted
from limpid.training.start import Training


def describe(training: Training) -> list[str]:
    """What is being trained on how much of what, and every option that was asked for and is not the default."""
    config, tokens, asked = training.config, training.tokens, training.run.read_asked()
    model = config.model
    chosen = [
        f"{name} {as_typed(to_dict(resolved)[name])}"
        for section, resolved, default in (
            (asked.model, config.model, ModelConfig),
            (asked.update, config.update, UpdateConfig),
            (asked.run, config.run, RunConfig),
        )
        for name, value in to_dict(section).items()
        if value != to_dict(default()).get(name)
    ]
    how = [f"{config.run.precision} on {training.state.mesh.device.type}, {counted(torch.get_num_threads(), 'thread')}"]
    if (mesh := training.state.mesh).world > 1:
        micro_batches = config.run.gradient_accumulation_steps // mesh.data_world
        rows = f"{micro_batches} × {config.run.batch_size} rows a step"
        how += [f"{mesh.world} processes as {mesh.parallel}, {rows} on each of {mesh.data_world}"]
    if training.state.model.compiled is not None:
        how += ["blocks compiled in the first step, which may wait for another process that compiles"]
    if training.state.graphs is not None:
        how += ["each micro-batch launched as one CUDA graph"]
    how += ["activations computed again"] if config.run.gradient_checkpointing == "on" else []
    return [
        f"model      {parameter_count(model):,} parameters: {counted(model.num_layers, 'layer')} × {model.d_model}, "
        f"{counted(model.num_heads, 'head')}, vocabulary {model.vocab_size:,}, context {model.context_length}",
        *_objective(training),
        *_data(config, tokens),
        f"engine     {', '.join(how)}; `limpid plan --explain-engine` says why",
        f"schedule   {_schedule(config, asked, timed=training.step_budget is not None)}",
        f"options    {', '.join(chosen) if chosen else 'all at their defaults'}",
        f"run        {training.run.path}/ (config.toml holds every option)",
    ]


def _objective(training: Training) -> list[str]:
    """What a run that tunes a model minimises, with its hyperparameters."""
    tune = training.config.tune
    if tune is None:
        return []
    chosen = {**to_document(training.objective), **tune.options}  # a price may be in the rewards
    if "kl" in chosen and not getattr(training.objective, "beta", 0.0):
        chosen["kl"] = "k1 in the rewards" if chosen.get("beta") and NAMED[tune.objective].kl_in_reward else None
    options = [f"{name} {as_typed(value)}" for name, value in chosen.items() if name != "name" and value is not None]
    return [f"objective  {', '.join([tune.objective, *options])}"]


def _data(config: TrainConfig, tokens: Tokens | Examples) -> list[str]:
    """How much there is to train on, and what the validation loss is a mean over."""
    if isinstance(tokens, Examples):
        what = {"answers": "answers", "pairs": "pairs", "judged": "judged answers", "prompts": "prompts"}[tokens.kind]
        held_out = min(tokens.validation.records, config.run.batch_size * config.run.eval_batches)
        judged = [f"validation {held_out:,} of them, spread evenly"] if config.run.eval_steps and held_out else []
        return [
            f"data       {tokens.train.records:,} {what} to train on, {tokens.validation.records:,} held out",
            *judged,
        ]
    said = f"data       {len(tokens.train):,} tokens to train on, {len(tokens.validation):,} held out"
    if not config.run.eval_steps:
        return [said]
    rows, length = config.run.batch_size * config.run.eval_batches, config.model.context_length
    parts = []
    for one in validation_sets(tokens, config.data):
        size = min(rows, (len(one.tokens) - 1) // length) * length
        parts.append(f"{one.name + ' ' if one.name else ''}{size:,} of {len(one.tokens):,}")
    weighted = "; each counts once, --weights are for training" if config.data.weights else ""
    decides = "; the first decides which checkpoint is best" if len(parts) > 1 else ""
    return [said, f"validation {', '.join(parts)} held-out tokens, spread evenly{weighted}{decides}"]


def _schedule(config: TrainConfig, asked: TrainConfig, timed: bool) -> str:
    """How many steps there will be, and how the learning rate goes along."""
    steps, update = config.run.max_steps, config.update
    warmup = update.warmup(steps)
    short = asked.update.warmup_steps is None and warmup == steps // 10 < USUAL_WARMUP and not timed
    why = ", a tenth of this short run" if short else ""
    rises = f"warm-up over {warmup}{why}, then " if warmup else f"no warm-up{' in so short a run' if short else ''}, "
    count = f"about {steps:,} steps, counted anew while it trains" if timed else f"{steps:,} steps"
    return f"{count}: {rises}{update.schedule.replace('_', ' ')}"
