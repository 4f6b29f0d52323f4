"""Weights from where they lie: a checkpoint of a run or a Hugging Face folder, every name and shape checked."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from limpid.config import ModelConfig
from limpid.errors import CheckpointError
from limpid.model.convert import folder_sizes, load_folder
from limpid.model.header import header, require_layers
from limpid.model.linear import merge
from limpid.model.lora import load_adapter
from limpid.model.transformer import Transformer
from limpid.quantities import parameters, trained_parameters
from limpid.run import AVERAGE
from limpid.source import Adapted, Checkpoint, Model, ModelFolder


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
    adapters added in."""
    if isinstance(source, ModelFolder):
        return load_folder(source.path)
    if isinstance(source, Adapted):
        config, weights = load_weights(source.base)
        return config, load_adapter(source.path, config).merged(weights)
    config = source.read_model_config()
    return merge(config, read_weights(source, config))


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


def read_tensors(file: Path, expected: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, names and shapes checked against what the configuration asks for."""
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        reason = "is missing" if not file.is_file() else f"cannot be read ({' '.join(str(error).split())})"
        raise CheckpointError(f"{file} {reason}: use another checkpoint, as RUN@STEP names it") from error
    for name, shape in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{file} lacks {name}: it belongs to another configuration")
        if tuple(tensors[name].shape) != tuple(shape):
            raise CheckpointError(
                f"{file}: {name} has shape {tuple(tensors[name].shape)}, the configuration asks for {tuple(shape)}"
            )
    return tensors
