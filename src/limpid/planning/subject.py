"""What can be planned, found by its name, path or kind."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from limpid.config import ModelConfig, TrainConfig
from limpid.errors import ConfigError
from limpid.files import user_path
from limpid.planning.architecture import Architecture, of_config
from limpid.planning.flops import flops_per_token
from limpid.planning.huggingface import read_file
from limpid.planning.published import known, published, suggestion
from limpid.source import Adapted, KeptRecording, ModelFolder, RecordedStep, Run, find_source
from limpid.source.hub import fetch, is_name

ASSUMED_VOCABULARY = 2048
"""What the tokenizer chooses on the default text; see data/new_tokenizer.py."""


@dataclass(frozen=True)
class Subject:
    """What is planned: its architecture, and how limpid would train it where a configuration says so."""

    architecture: Architecture
    config: TrainConfig | None = None
    notes: tuple[str, ...] = ()
    trained_tokens: float | None = None
    speed: float | None = None
    """Tokens per second that a run measured."""
    peak: float | None = None
    """FLOP/s that the run measured on its machine before its first step."""
    process_peak: float | None = None
    """Bytes that the run's process held at most."""
    precision_open: bool = False
    """Whether `precision` is an assumption, to be decided by measuring."""


def subject(what: str | Path | Run | ModelConfig | TrainConfig | Architecture | None) -> Subject:
    """Whatever can be planned, found by its name, path or kind."""
    if isinstance(what, Architecture):
        return Subject(what)
    if isinstance(what, ModelConfig):
        what = TrainConfig(model=what)
    if what is None:
        return _trained_here(TrainConfig(), "the default model")
    if isinstance(what, TrainConfig):
        return _trained_here(what, "model")
    if isinstance(what, Run):
        return _trained(what)
    path = user_path(what)
    if path.suffix == ".json" and path.is_file():
        return Subject(read_file(path))
    if path.suffix in (".toml", ".yaml", ".yml") and path.is_file():
        from limpid.config.files import read_config

        return _trained_here(read_config(path), path.stem)
    return _named(str(what))


def _named(what: str) -> Subject:
    """A run, a model folder, or a published name."""
    if known(what) is not None and not user_path(what).exists():
        return Subject(published(what))
    source = find_source(what)
    if source is None and is_name(what) and not user_path(what).parent.exists():
        return Subject(read_file(fetch(what, ("config.json",)) / "config.json"))
    if source is None or isinstance(source, RecordedStep | KeptRecording):
        raise ConfigError(
            f"{what!r} is neither a run, nor a folder or file with a configuration, nor a published model: "
            f"{suggestion(what)}"
        )
    source = source.base if isinstance(source, Adapted) else source
    if isinstance(source, ModelFolder):
        return Subject(read_file(source.config_file))
    return _trained(source if isinstance(source, Run) else source.run)


def _trained(run: Run) -> Subject:
    """A run, with what it measured."""
    config = run.read_config()
    progress = run.read_metrics().progress()
    found = _trained_here(config, run.path.name)
    if progress is None:
        return found
    flops = 3 * flops_per_token(found.config.model, found.config.model.context_length) if found.config else 0
    peak = progress.peak_share and flops * progress.tokens_per_second / progress.peak_share
    return dataclasses.replace(
        found, trained_tokens=progress.tokens, speed=progress.tokens_per_second, peak=peak,
        process_peak=progress.process_peak,
    )  # fmt: skip


def _trained_here(config: TrainConfig, name: str) -> Subject:
    notes: list[str] = []
    if not config.model.vocab_size:
        vocabulary = config.data.tokenizer_vocab_size or (
            257 if config.data.tokenizer == "bytes" else ASSUMED_VOCABULARY
        )
        if config.data.tokenizer_vocab_size is None and config.data.tokenizer != "bytes":
            notes.append(f"vocab_size is the tokenizer's, which is not made yet: {vocabulary:,} is assumed")
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=vocabulary))
    open_ = config.run.precision == "auto"
    if open_:
        notes.append(
            "precision is chosen by measuring when training begins: fp32 is assumed; --precision bf16 halves most"
        )
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, precision="fp32"))
    return Subject(of_config(config.model, name), config, tuple(notes), precision_open=open_)
