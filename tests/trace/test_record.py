"""A recorded step whose description was damaged ends in one line."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from limpid.errors import CheckpointError
from limpid.trace.record import Record


@pytest.mark.parametrize(
    ("metadata", "said"),
    [("{", "is not JSON"), ("[1]", "is list"), ("[" * 100_000, "nested too deeply"), ("{}", "format version None")],
)
def test_metadata_that_is_none_is_one_line(metadata: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "step.safetensors"
    save_file({"x": np.zeros(1)}, file, {"limpid": metadata})
    with pytest.raises(CheckpointError, match=said) as caught:
        _ = Record(file).meta
    assert "\n" not in str(caught.value)
