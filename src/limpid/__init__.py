"""limpid trains transformer language models and opens any training step."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limpid import data as data
    from limpid import maths as maths
    from limpid.adjoints.declared import surrogate as surrogate
    from limpid.api import export as export
    from limpid.api import load as load
    from limpid.api import plan as plan
    from limpid.api import resume as resume
    from limpid.api import trace as trace
    from limpid.api import train as train
    from limpid.api import tune as tune
    from limpid.comparison.compare import compare as compare
    from limpid.compression.files import compress as compress
    from limpid.compression.files import decompress as decompress
    from limpid.config import DataConfig as DataConfig
    from limpid.config import ModelConfig as ModelConfig
    from limpid.config import RunConfig as RunConfig
    from limpid.config import TrainConfig as TrainConfig
    from limpid.config import UpdateConfig as UpdateConfig
    from limpid.doctor import watch as watch
    from limpid.evaluation.evaluation import evaluate as evaluate
    from limpid.generation.generation import generate as generate
    from limpid.inspection.inspection import inspect as inspect
    from limpid.operations import recording as recording
    from limpid.training.callbacks import Callback as Callback

HOMES = {
    "Callback": "limpid.training.callbacks",
    "DataConfig": "limpid.config",
    "ModelConfig": "limpid.config",
    "RunConfig": "limpid.config",
    "TrainConfig": "limpid.config",
    "UpdateConfig": "limpid.config",
    "compare": "limpid.comparison.compare",
    "compress": "limpid.compression.files",
    "data": "limpid.data",
    "decompress": "limpid.compression.files",
    "evaluate": "limpid.evaluation.evaluation",
    "export": "limpid.api.models",
    "generate": "limpid.generation.generation",
    "inspect": "limpid.inspection.inspection",
    "load": "limpid.api.models",
    "maths": "limpid.maths",
    "plan": "limpid.api.plans",
    "recording": "limpid.operations",
    "resume": "limpid.api.runs",
    "surrogate": "limpid.adjoints.declared",
    "trace": "limpid.api.steps",
    "train": "limpid.api.runs",
    "tune": "limpid.api.tuning",
    "watch": "limpid.doctor",
}
"""Every public name, and where it is."""
__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    """Public names are found on first use: `import limpid` alone loads nothing."""
    if name == "__version__":
        from importlib.metadata import version

        return version("limpid")
    if name in HOMES:
        home = import_module(HOMES[name])
        return home if name in ("data", "maths") else getattr(home, name)
    raise AttributeError(f"limpid has no public name {name!r}; there are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
