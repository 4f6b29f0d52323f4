"""A run of several processes that fails ends with one line: which rank, at which step, doing what."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
import torch
import torch.distributed.checkpoint.hf_storage  # here, once: each forked process would import them anew
import torch.distributed.fsdp
from tests.training.test_mesh import batches, with_rule
from torch.distributed import TCPStore

from limpid.cli import main
from limpid.errors import CheckpointError
from limpid.run import Run
from limpid.training import failure, heartbeat
from limpid.training.failure import RankFailed, named_failures
from limpid.training.heartbeat import Heartbeat, Phase, Place
from limpid.training.mesh import Mesh, open_mesh
from limpid.training.state import fresh_state
from limpid.training.step import step

SEEN = 3
"""The step at which something happens to rank 1."""
OPTIONS = (
    "--tokenizer bytes --context-length 16 --d-model 24 --num-layers 2 --num-heads 3 --d-ff 40 --threads 1 --no-doctor "
    "--max-steps 6 --batch-size 4 --eval-steps 0 --save-steps 2 --precision fp32 --warmup-steps 3 --name run"
)
Fault = Callable[[], object]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(autouse=True)
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store that torchrun keeps, and what it tells its processes; they give signs of life twenty times as often."""
    port = free_port()
    keeper = os.fork()  # a process of its own: a thread of the store's in this one would not survive being forked
    if keeper == 0:
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        while store:
            signal.pause()
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(heartbeat, "PULSE", 0.05)
    monkeypatch.setattr(failure, "PULSE", 0.05)
    monkeypatch.setattr(failure, "PATIENCE", 1.0)
    yield
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)


def forked(world: int, folder: Path, work: Callable[[int], int]) -> list[int]:
    """Process ids of so many ranks, forked, which spares them the seconds of importing; each writes to its own file."""
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            _be_rank(rank, world, folder, work)
        children.append(child)
    return children


def _be_rank(rank: int, world: int, folder: Path, work: Callable[[int], int]) -> NoReturn:
    code = 1
    try:
        sys.stdout = sys.stderr = (folder / f"said.{rank}").open("w", buffering=1)
        os.dup2(sys.stdout.fileno(), 1)
        os.dup2(sys.stdout.fileno(), 2)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        torch.set_num_threads(1)
        code = work(rank)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def codes(children: list[int]) -> list[int | None]:
    """How each child ended; None of one that was stopped, which is ended once the others have, or that does not end."""
    found: dict[int, int | None] = {}
    stopped: set[int] = set()
    patience = time.monotonic() + 60
    while len(found) < len(children):
        for child in set(children) - set(found):
            changed, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if changed and os.WIFSTOPPED(status):
                stopped.add(child)
            elif changed:
                found[child] = None if child in stopped else os.waitstatus_to_exitcode(status)
        if {*found} | stopped == {*children} or time.monotonic() > patience:
            for child in (stopped := set(children) - set(found)):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return [found[child] for child in children]


def cut() -> None:
    """End every connection to the other processes, but for that to the store."""
    store = int(os.environ["MASTER_PORT"])
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as found:
            if found.family != socket.AF_UNIX and found.getpeername()[1] != store:
                found.shutdown(socket.SHUT_RDWR)


def fail() -> None:
    raise ZeroDivisionError("a loss of nothing")


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def steps(rank: int, where: str, fault: Fault, timeout: float) -> int:
    """Take steps as a run does, one of two processes, the second of which has a fault once; the exit code of a run."""
    config = with_rule("adamw")
    happened: list[bool] = []

    def at(mesh: Mesh, step: int, phase: Phase) -> None:
        if mesh.heartbeat is not None:
            mesh.heartbeat.at(step, phase)
        if (rank, step, phase, happened) == (1, SEEN, where, []):
            happened.append(True)
            fault()

    with pytest.MonkeyPatch.context() as patch, open_mesh() as mesh:
        patch.setattr(Mesh, "at", at)
        state = fresh_state(config, mesh)
        try:
            with named_failures(mesh):
                for number, batch in enumerate(batches(4), 1):
                    if number == SEEN:
                        mesh.wait_at_most(timeout)  # the first step takes its time
                    mesh.at(number, "reading data")
                    step(state, batch, config)
        except RankFailed as error:
            print("" if error.told else f"limpid: error: {error}")
            return 1
    return 0


def said(folder: Path, where: str, fault: Fault, timeout: float = 60.0) -> tuple[list[int | None], list[str]]:
    """How two processes end of which the second has a fault in some phase of a step, and what both said of it."""
    ended = codes(forked(2, folder, lambda rank: steps(rank, where, fault, timeout)))
    lines = [line for rank in range(2) for line in (folder / f"said.{rank}").read_text().splitlines()]
    return ended, [line for line in lines if line.startswith("limpid: ")]


def test_a_killed_rank_is_named_with_its_step_and_phase(here: Path) -> None:
    assert said(here, "clip", kill) == (
        [1, -signal.SIGKILL],
        [
            "limpid: error: rank 1 ended without a word in step 3, clip: it was killed, perhaps by a machine that ran "
            "out of memory"
        ],
    )


def test_a_rank_that_raises_says_why_itself_and_nobody_else_does(here: Path) -> None:
    line = "limpid: error: rank 1 failed in step 3, forward: ZeroDivisionError: a loss of nothing"
    assert said(here, "forward", fail) == ([1, 1], [line])
    assert (here / "said.1").read_text().splitlines()[0] == line
    assert (here / "said.1").read_text().splitlines()[-1] == "ZeroDivisionError: a loss of nothing"


def test_a_stalled_rank_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SILENT", 2.0)
    assert said(here, "update", stop, timeout=4.0) == (
        [1, None],
        [
            "limpid: rank 1 stalls: nothing was heard of it for 2 s, in step 3, update",
            "limpid: error: rank 1 stalled in step 3, update: the others waited for it until --timeout, and nothing is "
            "heard of it",
        ],
    )


def begun(rank: int, faulty: int, at: str) -> int:
    """Begin a run of two processes, one of which stops as it opens some file of the run; the exit code."""

    def heard(event: str, about: tuple[object, ...]) -> None:
        if rank == faulty and event == "open" and at in str(about[0]):
            stop()

    sys.addaudithook(heard)
    return main(["train", "text.txt", *OPTIONS.split(), "--timeout", "4"])


@pytest.mark.parametrize(("faulty", "at"), [(0, "tokenizer.json"), (1, "000000.writing"), (1, "kept-tokens")])
def test_a_rank_that_stalls_before_the_first_step_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, faulty: int, at: str
) -> None:
    monkeypatch.setenv("LIMPID_CACHE", str(here / "kept-tokens"))
    monkeypatch.setattr(heartbeat, "SILENT", 2.0)
    (here / "text.txt").write_text("the cat sees a tree\n" * 200)
    ended = codes(forked(2, here, lambda rank: begun(rank, faulty, at)))
    assert ended == [None if rank == faulty else 1 for rank in range(2)]
    lines = [line for rank in range(2) for line in (here / f"said.{rank}").read_text().splitlines()]
    assert [line for line in lines if line.startswith("limpid: error:")] == [
        f"limpid: error: rank {faulty} stalled in starting: the others waited for it until --timeout, and nothing is "
        "heard of it"
    ]


def test_a_main_process_that_is_killed_while_it_works_alone_is_missed_at_once(here: Path) -> None:
    def work(rank: int) -> int:
        with open_mesh() as mesh:
            try:
                with named_failures(mesh):
                    mesh.decided(kill)
            except RankFailed as error:
                print(f"limpid: error: {error}")
        return 1

    began = time.monotonic()
    assert codes(forked(2, here, work)) == [-signal.SIGKILL, 1]
    assert time.monotonic() - began < heartbeat.PATIENCE / 60
    assert "rank 0 ended without a word in starting" in (here / "said.1").read_text()


def test_what_the_main_process_does_alone_may_take_longer_than_the_others_would_wait(here: Path) -> None:
    def slow() -> int:
        time.sleep(3)
        return 7

    def work(rank: int) -> int:
        with open_mesh() as mesh:
            mesh.wait_at_most(1)
            return mesh.decided(slow)

    assert codes(forked(2, here, work)) == [7, 7]


def test_a_rank_that_is_late_is_named_with_what_it_does(here: Path) -> None:
    ended, lines = said(here, "reading data", lambda: time.sleep(6), timeout=2.0)
    assert ended[0] == 1
    assert lines == [
        "limpid: error: rank 1 is late: it still stands in step 3, reading data, and the others waited for it until "
        "--timeout"
    ]


def test_a_cut_connection_is_told_from_a_process_that_ended(here: Path) -> None:
    ended, lines = said(here, "clip", cut)
    assert ended == [1, 1]
    assert len(lines) == 1
    assert lines[0].startswith("limpid: error: the connection between ranks 0 and 1 was cut in step 3, ")
    assert lines[0].endswith(": every process still ran")


def test_what_torchrun_starts_anew_goes_on_with_the_run_that_it_began(
    here: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts have the same command line and one store: two processes, two again, of which one is lost, then one."""
    words = ["train", str(data), *OPTIONS.split()]

    def attempt(rank: int) -> int:
        at = Mesh.at

        def killed(mesh: Mesh, step: int, phase: Phase) -> None:
            at(mesh, step, phase)
            if (rank, step, phase) == (1, SEEN, "clip"):
                kill()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Mesh, "at", killed)
            return main(words)

    assert codes(forked(2, here, attempt)) == [1, -signal.SIGKILL]
    assert "rank 1 ended without a word in step 3, clip" in (here / "said.0").read_text()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert codes(forked(2, here, attempt)) == [1, -signal.SIGKILL]
    assert "resuming" in (here / "said.0").read_text()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert codes(forked(1, here, lambda _: main(words))) == [0]
    assert "resuming" in (here / "said.0").read_text()
    run = Run(here / "runs" / "run")
    assert [entry.name for entry in run.path.parent.iterdir()] == ["run"]
    entries = [json.loads(line) for line in run.metrics_file.open()]
    assert [entry["step"] for entry in entries if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    assert run.latest_checkpoint() == 6


def test_a_request_to_end_that_reaches_one_rank_saves_the_step_of_all(here: Path, data: Path) -> None:
    words = ["train", str(data), *OPTIONS.split()]

    def asked(rank: int) -> int:
        at = Mesh.at

        def ended(mesh: Mesh, step: int, phase: Phase) -> None:
            at(mesh, step, phase)
            if (rank, step, phase) == (1, SEEN, "forward"):
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Mesh, "at", ended)
            return main(words)

    assert codes(forked(2, here, asked)) == [130, 130]
    assert "stopped after step 3, everything saved" in (here / "said.0").read_text()
    assert Run(here / "runs" / "run").latest_checkpoint() == SEEN


@pytest.mark.parametrize("first", [True, False])
def test_who_is_not_to_speak_leaves_the_other_time_to(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun ends every process as soon as one has ended: the line would be lost with the one that was to say it."""
    waited: list[float] = []
    monkeypatch.setattr(failure, "_first", lambda _: first)
    monkeypatch.setattr(failure.time, "sleep", waited.append)
    store = SimpleNamespace(compare_set=lambda *_: None)
    beating = cast(Heartbeat, SimpleNamespace(rank=0, place=Place(3, "saving"), store=store))
    with pytest.raises(CheckpointError) as raised, named_failures(Mesh(world=2, heartbeat=beating)):
        raise CheckpointError("the disk is full")
    assert (raised.value.told, bool(waited)) == (not first, not first)
