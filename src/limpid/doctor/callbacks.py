"""The doctor inside other people's trainers: a callback for transformers' Trainer, one for Lightning."""

from __future__ import annotations

from typing import Any

from limpid.doctor.doctor import Doctor


def trainer_callback(**options: Any) -> Any:
    """A callback for transformers.Trainer: `Trainer(…, callbacks=[trainer_callback()])`; options as for limpid.watch.

    What the Trainer computes as loss is seen in its backward pass, so that nothing has to be passed on.
    """
    from transformers import TrainerCallback

    class DoctorCallback(TrainerCallback):
        """Watches from the first step to the last; `doctor` is there once training has begun."""

        doctor: Doctor | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            from pathlib import Path

            settings: dict[str, Any] = {
                "output": Path(args.output_dir),
                "total_steps": state.max_steps or None,
            } | options
            self.doctor = Doctor(
                given["model"],
                given.get("optimizer"),
                scheduler=given.get("lr_scheduler"),
                first_step=int(state.global_step) + 1,
                **settings,
            )

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.doctor is not None:
                self.doctor.close()

    return DoctorCallback()


class LightningCallback:
    """A callback for Lightning's Trainer, by its hooks: `Trainer(callbacks=[lightning_callback()])`."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.doctor: Doctor | None = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        schedules = [entry.scheduler for entry in getattr(trainer, "lr_scheduler_configs", [])]
        scaler = getattr(getattr(trainer, "precision_plugin", None), "scaler", None)
        self.doctor = Doctor(
            module,
            list(trainer.optimizers),
            scheduler=schedules,
            scaler=scaler,
            first_step=int(trainer.global_step) + 1,
            **self.options,
        )

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.doctor is not None and self.doctor.recorder.record.updated:
            self.doctor.step(outputs, batch)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        if self.doctor is not None:
            self.doctor.close()


def lightning_callback(**options: Any) -> Any:
    """The callback as a subclass of Lightning's own, where Lightning is installed."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            from importlib import import_module

            base = import_module(name).Callback
        except ImportError:
            continue
        return type("DoctorCallback", (LightningCallback, base), {})(**options)
    from limpid.errors import ConfigError

    raise ConfigError("Lightning is not installed: pip install lightning, or use limpid.watch in your own loop")
