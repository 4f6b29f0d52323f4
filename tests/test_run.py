"""A run of what lies in its folder."""

from pathlib import Path

import pytest

from limpid.errors import CheckpointError
from limpid.run import Run


@pytest.mark.parametrize("content", ["", "[model]\nd_model = 24\n", "[model]\nvocab_size = 31\n"])
def test_a_configuration_that_was_emptied_is_no_run_of_the_defaults(tmp_path: Path, content: str) -> None:
    run = Run(tmp_path)
    run.config_file.write_text(content)
    with pytest.raises(CheckpointError, match="does not say the run's vocab_size and precision"):
        run.read_config()
