"""When there are kernels, and what is said where there are none."""

import ctypes
import os
from pathlib import Path

import pytest

from limpid.native import build


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing found out yet, and nothing in the cache."""
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for function in (build._lacking, build._loaded, build._file, build.library):
        function.cache_clear()


def of_one_file(text: str, anew: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that are one file, on a processor that knows all that is needed."""
    source = anew / "sources" / "one.cpp"
    source.parent.mkdir()
    source.write_text(text)
    monkeypatch.setattr(build, "SOURCES", source.parent)
    monkeypatch.setattr(build, "processor_flags", lambda: KNOWN)
    monkeypatch.setattr(build, "FLAGS", ("-fPIC", "-shared"))
    return source


KNOWN = frozenset(build.NEEDED)


@pytest.mark.parametrize(
    ("flags", "path", "reason"),
    [
        (KNOWN - {"avx512_bf16"}, None, "the processor has no avx512_bf16"),
        (KNOWN | {"amx_bf16"}, None, "the processor has AMX"),
        (KNOWN, "", "no C++ compiler"),
        (KNOWN, None, ""),
    ],
)
def test_kernels_are_missing_where_processor_or_compiler_are(
    flags: frozenset[str], path: str | None, reason: str, anew: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "processor_flags", lambda: flags)
    if path is not None:
        monkeypatch.setenv("PATH", path)
        monkeypatch.delenv("CXX", raising=False)
    found = build.missing()
    assert found.startswith(reason) if reason else not found
    if reason:
        assert build.library() is None


def test_the_library_is_compiled_once_for_each_text_of_it(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = of_one_file('extern "C" int answer() { return 41; }', anew, monkeypatch)
    first = build.library()
    assert isinstance(first, ctypes.CDLL)
    assert first.answer() == 41
    made = {file: file.stat().st_ino for file in (anew / "native").iterdir()}
    forget()
    assert not build.is_to_be_compiled()
    build.library()
    assert {file: file.stat().st_ino for file in (anew / "native").iterdir()} == made
    source.write_text('extern "C" int answer() { return 42; }')
    forget()
    assert build.is_to_be_compiled()
    assert build.library().answer() == 42
    assert len(list((anew / "native").glob("*.so"))) == 2


@pytest.mark.parametrize("left", [0, 5000])
def test_a_library_cut_short_is_made_anew(left: int, anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading it as it is would kill the process: pages of it lie beyond the end of the file."""
    of_one_file('extern "C" int answer() { return 41; }', anew, monkeypatch)
    (anew / "native").mkdir()
    whole = build._built().read_bytes()
    build._file().write_bytes(whole[:left])
    assert build.is_to_be_compiled()
    assert build.library().answer() == 41
    assert build._file().read_bytes() == whole


def test_a_compiler_that_fails_leaves_no_library_and_a_reason(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one_file("this is no C++", anew, monkeypatch)
    assert not build.missing()  # nothing is known yet
    assert build.library() is None
    assert "error" in build.failure()
    assert build.missing() == build.failure()  # from here on planned without them
    assert not list((anew / "native").iterdir())


def test_a_cache_that_cannot_be_written_is_named(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one_file('extern "C" int answer() { return 41; }', anew, monkeypatch)
    (anew / "native").write_text("no folder")
    assert build.library() is None
    assert str(anew / "native") in build.failure()


def test_ctrl_c_while_it_is_compiled_leaves_nothing_in_the_way(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one_file('extern "C" int answer() { return 41; }', anew, monkeypatch)
    compiler = anew / "compiler"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\necho > $TMPDIR/left\nkill -INT $PPID\nexec sleep 9\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(KeyboardInterrupt):
        build.library()
    assert not list((anew / "native").iterdir())
    monkeypatch.delenv("CXX")
    forget()
    assert build.library().answer() == 41


def test_what_a_killed_process_left_is_removed_and_what_another_compiles_is_not(
    anew: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_one_file('extern "C" int answer() { return 41; }', anew, monkeypatch)
    for name in ("tmpold", "tmpnew"):
        (anew / "native" / name).mkdir(parents=True)
    os.utime(anew / "native/tmpold", (0, 0))
    build.library()
    assert [file.name for file in (anew / "native").iterdir() if file.is_dir()] == ["tmpnew"]


def a_compiler(anew: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """One that does something first, and a limit of one second."""
    real = build.compiler()
    compiler = anew / "compiler"
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\n{first}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(build, "SECONDS", 1)


def test_a_compiler_that_waits_for_a_busy_processor_is_not_given_up(
    anew: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_one_file('extern "C" int answer() { return 41; }', anew, monkeypatch)
    a_compiler(anew, monkeypatch, "sleep 2")
    assert build.library().answer() == 41


def test_a_compiler_that_comes_to_no_end_is(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one_file('extern "C" int answer() { return 41; }', anew, monkeypatch)
    a_compiler(anew, monkeypatch, "while :; do :; done")
    assert build.library() is None
    assert build.failure() == f"{anew}/compiler takes longer than 1 s"
    assert not list((anew / "native").iterdir())
