"""limpid trains transformer language models and opens any training step."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limpid import maths as maths
    from limpid.api import export as export
    from limpid.api import load as load
    from limpid.api import open_step as open_step
    from limpid.api import resume as resume
    from limpid.api import train as train
    from limpid.config import DataConfig as DataConfig
    from limpid.config import ModelConfig as ModelConfig
    from limpid.config import RunConfig as RunConfig
    from limpid.config import TrainConfig as TrainConfig
    from limpid.config import UpdateConfig as UpdateConfig
    from limpid.doctor import watch as watch
    from limpid.training.callbacks import Callback as Callback

__all__ = [
    "Callback",
    "DataConfig",
    "ModelConfig",
    "RunConfig",
    "TrainConfig",
    "UpdateConfig",
    "export",
    "load",
    "maths",
    "open_step",
    "resume",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Public names are found on first use: `import limpid` alone loads nothing."""
    if name == "__version__":
        from importlib.metadata import version

        return version("limpid")
    if name == "maths":
        return import_module("limpid.maths")
    if name in __all__:
        homes = {"watch": "limpid.doctor", "Callback": "limpid.training.callbacks"}
        home = "limpid.config" if name.endswith("Config") else homes.get(name, "limpid.api")
        return getattr(import_module(home), name)
    raise AttributeError(f"limpid has no public name {name!r}; there are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
