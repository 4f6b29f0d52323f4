"""A room for one case: a process forked from one that has imported limpid, with little time and no privileges."""

import contextlib
import ctypes
import importlib
import os
import pkgutil
import pty
import resource
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import tty
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_SECONDS = 20  # of one case; what it takes longer is called a hang
IDLE_SECONDS = 20.0  # asleep for so long without using the processor: it waits for something that never comes
WALL_SECONDS = 300.0
MEMORY = 4 << 30  # bytes of address space beyond what the imports took
FILE_SIZE = 1 << 30
PYTHON_ERROR = 70  # exit code of a child in which an exception came out


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its exit code, or the signal, or why it was ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    hung: str = ""


def isolate(work: Path) -> None:
    """Caches, locks and temporary files in a folder of one's own, and nothing from the network."""
    for variable, name in (("TMPDIR", "tmp"), ("XDG_CACHE_HOME", "cache")):
        (work / name).mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(work / name)
    tempfile.tempdir = None  # it is chosen anew
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "120"}


def warm() -> None:
    """Import limpid, all of it, so that every forked case begins at once."""
    import limpid

    for module in pkgutil.walk_packages(limpid.__path__, "limpid.", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except Exception as problem:  # an optional dependency; the case will say so if it matters
                print(f"not imported: {module.name} ({problem})", file=sys.stderr)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        print(f"{threads} threads before forking: set OMP_NUM_THREADS=1", file=sys.stderr)


def obey_permissions() -> None:
    """Give up root's right to read and write what permissions forbid."""

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    class Data(ctypes.Structure):
        _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))

    libc = ctypes.CDLL(None)
    header, data = Header(0x20080522, 0), (Data * 2)()
    if os.geteuid() == 0 and libc.capget(ctypes.byref(header), data) == 0:
        libc.prctl(28, 1)  # SECBIT_NOROOT: what this process starts has no more rights than it has
        for word in data:
            word.effective = word.permitted = word.inheritable = 0
        libc.capset(ctypes.byref(header), data)


def _limits(cpu_seconds: int) -> None:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    obey_permissions()


def limpid(argv: Sequence[str]) -> Callable[[], None]:
    """What `limpid ARGV` does, in a process that has imported it."""

    def command() -> None:
        sys.argv = ["limpid", *argv]
        runpy.run_module("limpid", run_name="__main__", alter_sys=True)

    return command


def cold(argv: Sequence[str], closed: Sequence[int] = ()) -> Callable[[], None]:
    """The same in a new Python process, with some of its standard streams closed."""

    def command() -> None:
        for number in closed:
            os.close(number)
        os.execv(sys.executable, [os.fsencode(word) for word in (sys.executable, "-m", "limpid", *argv)])

    return command


def _open_streams() -> None:
    """Standard streams as a new process has them; those of the parent know its files, not these."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        new = open(number, "w" if number else "r", encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        new.reconfigure(line_buffering=number == 2 or new.isatty())
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _child(command: Callable[[], None], folder: Path, streams: tuple[int, int, int], cpu_seconds: int) -> None:
    """In the forked process: never returns."""
    code = 0
    try:
        os.setsid()
        os.chdir(folder)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, 256)
        _open_streams()
        _limits(cpu_seconds)
        command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = PYTHON_ERROR
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or PYTHON_ERROR
    os._exit(code & 255)


def _processor_seconds(pid: int) -> tuple[float, bool]:
    """Processor time of a process and those below it, and whether any of them is at work."""
    seconds, busy, todo = 0.0, False, [pid]
    while todo:
        one = todo.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            todo += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except OSError:
            continue
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        busy |= fields[0] in "RD"
    return seconds, busy


def _drain(master: int, into: bytearray) -> None:
    while select.select([master], [], [], 0)[0]:
        try:
            got = os.read(master, 1 << 16)
        except OSError:
            return
        if not got:
            return
        into.extend(got)


def run(
    command: Callable[[], None],
    folder: Path,
    stdin: bytes | None = None,
    terminal: bool = False,
    cpu_seconds: int = CPU_SECONDS,
) -> Outcome:
    """Run a command in a forked process; its output goes to files, or to two pseudo-terminals."""
    began = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin or b"")
        given.seek(0)
        masters: list[int] = []
        slaves: list[int] = []
        shown = [bytearray(), bytearray()]
        if terminal:
            for _ in range(2):
                master, slave = pty.openpty()
                tty.setraw(slave)
                masters.append(master)
                slaves.append(slave)
        first, second = slaves if terminal else (out.fileno(), err.fileno())
        pid = os.fork()
        if pid == 0:
            _child(command, folder, (given.fileno(), first, second), cpu_seconds)
        status, hung = _wait(pid, [(m, s) for m, s in zip(masters, shown, strict=False)], began)
        for master, into in zip(masters, shown, strict=False):
            _drain(master, into)
        for number in [*masters, *slaves]:
            os.close(number)
        if not terminal:
            for k, file in enumerate((out, err)):
                file.seek(0)
                shown[k] = bytearray(file.read(4 << 20))
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and not hung and time.monotonic() - began > cpu_seconds):
        hung = f"{cpu_seconds} s of processor time"
    texts = [bytes(b).decode("utf-8", "surrogateescape") for b in shown]
    return Outcome(code, texts[0], texts[1], time.monotonic() - began, hung)


def _wait(pid: int, masters: list[tuple[int, bytearray]], began: float) -> tuple[int, str]:
    """Wait for the end; end what sleeps without a reason, or takes too long."""
    hung, pause = "", 0.005
    used, since = -1.0, began
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        for master, into in masters:
            _drain(master, into)
        if done:
            break
        now = time.monotonic()
        if pause >= 0.2 and not hung:
            seconds, busy = _processor_seconds(pid)
            if busy or seconds != used:
                used, since = seconds, now
            if now - since > IDLE_SECONDS or now - began > WALL_SECONDS:
                hung = "asleep" if now - since > IDLE_SECONDS else f"{WALL_SECONDS:.0f} s"
                os.killpg(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # whatever it started and left behind
    return status, hung


def aside(work: Callable[[], bytes]) -> bytes:
    """What a function makes in a forked process, so that the libraries it needs start no threads in this one."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                file.write(work())
                file.flush()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("what the cases need could not be made")
        file.seek(0)
        return file.read()


def build(argv: Sequence[str], folder: Path) -> None:
    """Run limpid without limits, for what the cases need; it has to work."""
    done = subprocess.run(
        [sys.executable, "-m", "limpid", *argv], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise SystemExit(f"limpid {' '.join(argv)} failed, which the cases need: {done.stderr or done.stdout}")
