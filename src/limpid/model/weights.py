"""Weights from where they lie: a checkpoint of a run or a Hugging Face folder, every name and shape checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from limpid.config import ModelConfig
from limpid.errors import CheckpointError, ConfigError
from limpid.model.convert import folder_sizes, load_folder, step_of
from limpid.model.header import header, require_layers
from limpid.model.linear import merge
from limpid.model.lora import Adapter, trained_adapter
from limpid.model.peft_files import load_adapter, save_adapter
from limpid.model.pissa import beside_the_original
from limpid.model.transformer import Transformer
from limpid.quantities import VALUE, parameters, trained_parameters
from limpid.run import AVERAGE, Run
from limpid.source import Adapted, Checkpoint, Model, ModelFolder, find_source


def load_model(source: Model) -> Transformer:
    """A model, ready to run in float32.

    Raises  CheckpointError for weights that are missing, cut short or of another shape
    """
    config, weights = load_weights(source)
    model = Transformer(config)
    model.load_state_dict(weights)
    model.title = str(source)
    return model.eval()


def load_weights(source: Model) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Sizes and parameters, under our names, as they were saved (float32 or wider); low-rank factors and
    adapters added in, a value function left out."""
    if isinstance(source, ModelFolder):
        return load_folder(source.path)
    if isinstance(source, Adapted):
        config, weights = load_weights(source.base)
        return config, load_adapter(source.path, config, str(source.base)).merged(weights)
    config = source.read_model_config()
    return merge(config, read_weights(source, config))


def value_function(source: Model) -> dict[str, Tensor]:
    """The head of a run that learned a value function beside its vocabulary, by name; nothing of other models."""
    if not isinstance(source, Checkpoint) or (config := source.read_model_config()).head != "vocabulary_and_value":
        return {}
    return {VALUE: read_weights(source, config)[VALUE]}


def sizes_of(source: Model) -> ModelConfig:
    """The configuration of a model, without its weights."""
    if isinstance(source, ModelFolder):
        return folder_sizes(source.path)
    return sizes_of(source.base) if isinstance(source, Adapted) else source.read_model_config()


def read_weights(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Tensor]:
    """The parameters of a checkpoint, as they were written; names and shapes checked."""
    checkpoint.run.verify(checkpoint.step, "model.safetensors")
    file = checkpoint.path / "model.safetensors"
    if file.is_file():
        require_layers(config.num_layers, header(file), str(file))
    weights = read_tensors(file, {p.name: p.shape for p in parameters(config)})
    if checkpoint.averaged:
        trained = trained_parameters(checkpoint.run.read_config())
        checkpoint.run.verify(checkpoint.step, AVERAGE)
        weights |= read_tensors(checkpoint.path / AVERAGE, {p.name: p.shape for p in trained})
    return weights


def load_adapted(source: Model) -> tuple[dict[str, Tensor], Adapter]:
    """Weights without their low-rank factors, and these: of a run that trains some, or of an adapter.

    Raises  ConfigError for what has none
    """
    if isinstance(source, Adapted):
        config, weights = load_weights(source.base)
        return weights, load_adapter(source.path, config, str(source.base))
    if not isinstance(source, Checkpoint) or not (config := source.read_model_config()).lora_rank:
        raise ConfigError(f"{source} has no low-rank factors: give a run trained with --lora-rank, or an adapter")
    config, weights = _with_factors(source, config)
    return weights, trained_adapter(config, weights)


def write_adapter(folder: Path, source: Model, dtype: torch.dtype) -> None:
    """Write the factors that a run trained as peft keeps an adapter, for the model that it started from.

    Raises  ConfigError for what has no factors, and for a run that started from no model
    """
    if not isinstance(source, Checkpoint) or not (config := source.read_model_config()).lora_rank:
        raise ConfigError(
            f"{source} has no low-rank factors of its own: --adapter is for runs trained with --lora-rank"
        )
    base = adapter_base(source.run)
    if base is None:
        raise ConfigError(
            f"{source} started from weights that were drawn, which no other program has: export it without --adapter"
        )
    config, weights = _with_factors(source, config)
    save_adapter(folder, config, {name: tensor.to(dtype) for name, tensor in weights.items()}, base)


def _with_factors(source: Checkpoint, config: ModelConfig) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model of a run that trains factors, these beside the weights of the model that it started from."""
    return beside_the_start(source.run, config, read_weights(source, config))


def beside_the_start(
    run: Run, config: ModelConfig, weights: dict[str, Tensor]
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The same of a run in progress, with its weights as they are.

    Raises  CheckpointError where factors began as parts of the weights, and the run's first checkpoint is not there
    """
    if config.init_lora_weights != "pissa":
        return config, weights
    return beside_the_original(config, weights, read_weights(Checkpoint(run, 0), config))


def adapter_base(run: Run) -> str | None:
    """The model that a run's factors are for, as other programs load it; None where it started from none.

    It is the one that the run started from, without an adapter whose own factors went on being trained; a run's last
    checkpoint is its folder model/.
    """
    base = run.read_config().run.init_from
    if base is None:
        return None
    source = find_source(base)
    if isinstance(source, Adapted) and not run.read_asked().model.lora_rank:
        source = source.base
    if isinstance(source, Checkpoint) and not source.averaged and step_of(source.run.model_folder) == source.step:
        return str(source.run.model_folder)
    return base if source is None else str(source)


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file, each read when it is asked for; names and shapes as the configuration asks.

    Raises  CheckpointError for a file that cannot be read, or of another configuration
    """

    def __init__(self, file: Path, expected: Mapping[str, tuple[int, ...]]) -> None:
        self.file = file
        with self._readable():
            self._stored: Any = safe_open(file, framework="pt")
            self._names = dict.fromkeys(self._stored.keys())
            shapes = {name: tuple(self._stored.get_slice(name).get_shape()) for name in self._names}
        for name, shape in expected.items():
            if name not in shapes:
                raise CheckpointError(f"{file} lacks {name}: it belongs to another configuration")
            if shapes[name] != tuple(shape):
                raise CheckpointError(
                    f"{file}: {name} has shape {shapes[name]}, the configuration asks for {tuple(shape)}"
                )

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        with self._readable():
            tensor: Tensor = self._stored.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = "cannot be read" if self.file.is_file() else "is missing"
            said = f" ({' '.join(str(error).split())})" if self.file.is_file() else ""
            raise CheckpointError(
                f"{self.file} {reason}{said}: use another checkpoint, as RUN@STEP names it"
            ) from error


def read_tensors(file: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """All of them in memory."""
    return dict(TensorFile(file, expected))
