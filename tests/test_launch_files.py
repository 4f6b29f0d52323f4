"""The launch files start torchrun as they say, and go on with the run that they began."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

LAUNCH = Path(__file__).parents[1] / "examples" / "launch"
STANDS_IN = {
    "srun": 'shift; exec "$@"\n',  # after --kill-on-bad-exit
    "scontrol": "seq -f node%g 7 20000\n",  # more than a pipe holds: who reads the first one alone would end it
    "torchrun": 'printf "%s\\n" "$@"\n',
    "nvidia-smi": "exit 1\n",
}
"""The scheduler's commands, and a torchrun that says what it was given."""


def started(here: Path, *words: str, **environment: str) -> list[str]:
    """What torchrun is given by a command, where the scheduler's commands are stand-ins."""
    stand_ins = here / "bin"
    stand_ins.mkdir(exist_ok=True)
    for name, does in STANDS_IN.items():
        (stand_ins / name).write_text(f"#!/bin/bash\n{does}")
        (stand_ins / name).chmod(0o755)
    path = {"PATH": f"{stand_ins}:{os.environ['PATH']}"}
    found = subprocess.run(words, cwd=here, env=path | environment, capture_output=True, text=True, check=True)
    return found.stdout.split()


def a_run(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "config.toml").touch()


def test_one_machine_starts_two_processes_without_a_gpu(tmp_path: Path) -> None:
    given = started(tmp_path, str(LAUNCH / "machine.sh"), "book.txt", "--max-steps", "5")
    assert given[:3] == ["--standalone", "--nproc-per-node", "2"]
    assert given[-6:] == ["-m", "limpid", "train", "book.txt", "--max-steps", "5"]


def test_a_slurm_job_begins_its_run_and_goes_on_with_it_when_requeued(tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "41", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_NODELIST": "node[7-8]"}
    words = ["bash", str(LAUNCH / "slurm.sbatch"), "book.txt"]
    given = started(tmp_path, *words, **job)
    assert given[given.index("--rdzv-endpoint") + 1] == "node7:29500"
    assert given[given.index("--rdzv-id") + 1] == "41-0"
    assert given[-6:] == ["-m", "limpid", "train", "book.txt", "--name", "slurm-41"]
    a_run(tmp_path / "runs" / "slurm-41")
    given = started(tmp_path, *words, **job, SLURM_RESTART_COUNT="1")
    assert given[given.index("--rdzv-id") + 1] == "41-1"
    assert given[-5:] == ["-m", "limpid", "train", "--resume", "runs/slurm-41"]


@pytest.mark.parametrize("begun", [False, True], ids=["begins", "goes-on"])
def test_the_pods_of_a_jobset_begin_a_run_and_go_on_with_it(tmp_path: Path, begun: bool) -> None:
    spec = yaml.safe_load((LAUNCH / "kubernetes-jobset.yaml").read_text())["spec"]
    job = spec["replicatedJobs"][0]
    pod = job["template"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    if begun:
        a_run(tmp_path / "runs" / "jobset")
    given = started(tmp_path, *container["command"], *container["args"], JOBSET_RESTART_ATTEMPT="2")
    assert given[given.index("--rdzv-id") + 1] == "limpid-2"
    assert given[given.index("--nnodes") + 1] == str(job["template"]["spec"]["completions"])
    assert given[given.index("--nproc-per-node") + 1] == str(container["resources"]["limits"]["nvidia.com/gpu"])
    first_pod = f"limpid-{job['name']}-0-0.{spec['network']['subdomain']}"
    assert given[given.index("--rdzv-endpoint") + 1] == f"{first_pod}:29500"
    assert int(given[given.index("--shutdown-timeout") + 1]) < pod["terminationGracePeriodSeconds"]
    assert given[given.index("train") :][:2] == (["train", "--resume"] if begun else ["train", "book.txt"])


def test_slurm_asks_to_end_earlier_than_torchrun_gives_up(tmp_path: Path) -> None:
    lines = (LAUNCH / "slurm.sbatch").read_text()
    before_the_end = int(lines.split("--signal=TERM@")[1].split()[0])
    assert int(lines.split("--shutdown-timeout")[1].split()[0]) < before_the_end
