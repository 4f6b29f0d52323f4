"""When there are kernels, and what is said where there are none."""

import ctypes
from pathlib import Path

import pytest

from limpid.native import build


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing found out yet, and nothing in the cache."""
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path))
    for function in (build.missing, build.library, build._file):
        function.cache_clear()
    yield tmp_path
    for function in (build.missing, build.library, build._file):
        function.cache_clear()


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
    sources = anew / "sources"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int answer() { return 41; }')
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "processor_flags", lambda: KNOWN)
    monkeypatch.setattr(build, "FLAGS", ("-fPIC", "-shared"))
    first = build.library()
    assert isinstance(first, ctypes.CDLL)
    assert first.answer() == 41
    (made,) = (anew / "native").iterdir()
    build.library.cache_clear()
    assert not build.is_to_be_compiled()
    build.library()
    assert list((anew / "native").iterdir()) == [made]
    (sources / "one.cpp").write_text('extern "C" int answer() { return 42; }')
    build.library.cache_clear()
    build._file.cache_clear()
    assert build.is_to_be_compiled()
    assert build.library().answer() == 42
    assert len(list((anew / "native").iterdir())) == 2


def test_a_compiler_that_fails_leaves_no_library_and_no_error(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = anew / "sources"
    sources.mkdir()
    (sources / "broken.cpp").write_text("this is no C++")
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "processor_flags", lambda: KNOWN)
    assert build.library() is None
    assert not list((anew / "native").iterdir())
