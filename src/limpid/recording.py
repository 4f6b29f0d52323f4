"""Which recorded step is meant: a file, or a step of a run, recorded now if it was not before."""

from __future__ import annotations

from pathlib import Path

from limpid.errors import ConfigError


def recorded(what: str, step: int | None, text: str | None, output: str | None = None) -> Path:
    """The file of the step asked for, recorded now if it was not before."""
    from limpid.run import find_run

    path = Path(what)
    if path.is_file():
        if step is not None or text is not None:
            raise ConfigError(f"{path} is one recorded step: leave out {'--step' if text is None else '--text'}")
        return path
    if text is not None:
        if step is not None:
            raise ConfigError("--text takes a step of its own on that text: leave out --step")
        from limpid.training.reopen import record_text

        return record_text(path, text, None if output is None else Path(output))
    if (path / "config.json").is_file() and not (path / "config.toml").is_file():
        raise ConfigError(f'{path} is a model, which has taken no steps: give a text, as in --text "To be or not"')
    run = find_run(what)
    number = run.read_config().run.max_steps if step is None else step
    if step is None:
        steps = run.checkpoint_steps()
        number = min(number, steps[-1]) if steps and steps[-1] else number
    if number >= 1 and run.recorded_step(number).is_file():
        return run.recorded_step(number)
    from limpid.training.reopen import record_past

    return record_past(run, number)
