"""What a verb says of itself, and what a shell completes."""

import subprocess
from pathlib import Path

import pytest

from limpid.cli import main


def test_help_of_every_verb_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, option in (
        ("train", "--learning-rate"),
        ("trace", "--quantity"),
        ("generate", "--top-p"),
        ("chat", "--seed"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([verb, "--help"])
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert option in shown
        with pytest.raises(SystemExit):
            main(["help", verb])
        assert capsys.readouterr().out == shown


def test_help_of_a_verb_below_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "plan", "fit"])
    assert "usage: limpid plan fit" in capsys.readouterr().out


def test_a_shell_completes_options_of_every_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "limpid.bash").write_text(capsys.readouterr().out)
    ask = "COMP_WORDS=(limpid train --learning-r); COMP_CWORD=2; _shtab_limpid; echo ${COMPREPLY[@]}"
    done = subprocess.run(["bash", "-c", f". {tmp_path}/limpid.bash; {ask}"], capture_output=True, text=True)
    assert done.stdout.strip() == "--learning-rate"
    assert not done.stderr


def test_switches_with_a_short_spelling_are_shown_with_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compress", "--help"])
    assert "  -f, --force " in capsys.readouterr().out
