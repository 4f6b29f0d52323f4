"""A device of pretence, "pretend": an accelerator for tests where there is none, made of device.cpp and what is here.

Its numbers are the CPU's. What differs is what differs on every accelerator: tensors of the host do not meet its own,
reading one of them waits (`waits` counts that), and an id out of range loses it (`is_lost`) until `recover`.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils import cpp_extension

from limpid.files import cache_folder
from limpid.native.build import compiler

NAME = "pretend"
SOURCE = Path(__file__).parent / "device.cpp"
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-w")
LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch")


@cache
def install() -> str:
    """Make the device known to PyTorch in this process; its name."""
    torch.ops.load_library(_built())
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    torch.utils.generate_methods_for_privateuse1_backend()
    return NAME


def waits() -> int:
    """How often the host has read numbers of the device, or handed it numbers and waited until it had them."""
    return int(torch.ops.pretend.waits())


def is_lost() -> bool:
    """Whether an index was out of range: from then on every use of the device fails."""
    return bool(torch.ops.pretend.is_lost())


def recover() -> None:
    """Have the device work again."""
    torch.ops.pretend.recover()


def _built() -> Path:
    """The library's file in the user's cache, compiled first where it is not there."""
    text = "\0".join((torch.__version__, *FLAGS, SOURCE.read_text(encoding="utf-8")))
    file = cache_folder() / "native" / f"pretend-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.so"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            includes = [f"-I{path}" for path in cpp_extension.include_paths()]
            places = [
                option for path in cpp_extension.library_paths() for option in (f"-L{path}", f"-Wl,-rpath,{path}")
            ]
            command = [str(compiler()), *FLAGS, *includes, str(SOURCE), "-o", str(made), *places, *LIBRARIES]
            subprocess.run(command, check=True)
            made.replace(file)
    return file


def _module() -> ModuleType:
    """What PyTorch asks of `torch.pretend`: one device, with the host's random numbers."""
    module: Any = ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = module.synchronize = lambda device=None: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.manual_seed = module.manual_seed_all = lambda seed: None  # its numbers are drawn by the host's generator
    module.get_rng_state = _random_state
    module.set_rng_state = _set_random_state
    return module


def _random_state(device: Any = None) -> Tensor:
    return torch.get_rng_state()


def _set_random_state(state: Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)
