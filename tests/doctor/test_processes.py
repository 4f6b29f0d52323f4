"""Two processes, DistributedDataParallel and fully_shard: nothing changes to the bit, and faults are named."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import limpid
from doctor.bench import Decoder, batch, groups, mean_loss, rules

STEPS = 8
EXPECTED = {
    "ddp": {
        "none": "",
        "inner": "gradients-not-averaged",
        "start": "ranks-start-apart",
        "data": "ranks-same-data",
        "bits": "rank-computes-wrong",
        "slow": "rank-is-slow",
        "reads": "rank-is-slow",
        "missing": "parameters-not-in-optimizer",
        "rate": "learning-rate-too-high",
        "nan": "not-finite",
    },
    "fsdp": {
        "none": "",
        "data": "ranks-same-data",
        "missing": "parameters-not-in-optimizer",
        "cleared": "gradients-not-cleared",
        "rate": "learning-rate-too-high",
        "nan": "not-finite",
    },
}
"""The rule that each fault is named by first."""


def wrapped(model: Decoder, way: str, fault: str) -> nn.Module:
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model, init_sync=fault != "start")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def losses_of(way: str, fault: str, rank: int, watched: bool) -> tuple[list[str], Any]:
    model = Decoder()
    if fault == "start":
        with torch.no_grad():
            model.head.weight.add_(0.01 * rank)
    outer, pause = wrapped(model, way, fault), 0.05 if watched else 0.0  # only the doctor notices it
    held = groups(model)
    if fault == "missing":
        held[0]["params"] = [p for p in held[0]["params"] if p is not model.head.weight]
    optimizer = torch.optim.AdamW(held, lr=1e-3)
    number = 0
    if fault == "bits" and rank == 1:
        model.head.weight.register_hook(lambda g: g * 1e12 if number == 4 else g)
    if fault == "slow" and rank == 1:
        model.blocks[0].register_forward_hook(lambda *_: time.sleep(pause))
    if fault == "nan":
        model.norm.register_forward_hook(lambda *given: given[-1] / (0.0 if number == 4 else 1.0))
    doctor = limpid.watch(outer, optimizer, say=False) if watched else None
    losses = []
    for number in range(20 if fault in ("rate", "slow", "reads") else STEPS):
        if fault == "rate" and number == 12:
            for group in optimizer.param_groups:
                group["lr"] = 0.1
        if fault == "reads" and rank == 1:
            time.sleep(pause)
        given = batch(number if fault == "data" else 2 * number + rank)
        loss = mean_loss(model if fault == "inner" else outer, given)
        loss.backward()
        optimizer.step()
        if fault != "cleared":
            optimizer.zero_grad()
        losses.append(str(float(loss.detach())))
        if doctor is not None:
            doctor.step(loss, given)
            dist.barrier()
    if doctor is not None:
        doctor.close()
    return losses, doctor


def one_rank(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    said: dict[str, dict[str, Any]] = {way: {} for way in EXPECTED}
    for way, faults in EXPECTED.items():
        for fault in faults:
            plain, _ = losses_of(way, fault, rank, watched=False)
            losses, doctor = losses_of(way, fault, rank, watched=True)
            said[way][fault] = {
                "same": losses == plain,
                "rules": rules(doctor.findings),
                "noticed": [finding.rule for finding in doctor.findings if finding.severity == "notice"],
                "says": [f"{finding.says} {finding.cause}" for finding in doctor.findings],
                "skipped": dict(doctor.skipped),
                "norms": doctor.history.norms.all.tolist(),
            }
    Path(folder, f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the doctors of both processes said, by way of wrapping."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    mp.spawn(one_rank, (port, str(folder)), nprocs=2)
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return {way: [one[way] for one in said] for way in EXPECTED}


@pytest.mark.parametrize(("way", "fault"), [(way, fault) for way in EXPECTED for fault in EXPECTED[way]])
def test_a_fault_among_two_processes_is_named_and_changes_nothing(way: str, fault: str, reported: Any) -> None:
    for said in reported[way]:
        assert said[fault]["same"]
        assert list(said[fault]["skipped"]) == (["the model's graph"] if way == "fsdp" else [])
    found, expected = reported[way][0][fault], EXPECTED[way][fault]
    named = found["noticed" if expected == "rank-is-slow" else "rules"] or [""]
    assert named[0] == expected, found


def test_a_process_sees_the_gradient_of_its_own_shard(reported: Any) -> None:
    norms = [said["none"]["norms"] for said in reported["fsdp"]]
    assert all(len(own) == STEPS and all(0 < norm < math.inf for norm in own) for own in norms)
    assert norms[0] != norms[1]


def test_a_break_of_a_sharded_model_says_what_was_not_tried(reported: Any) -> None:
    assert "is div in norm" in reported["ddp"][0]["nan"]["says"][0]
    assert "each process holds a part of the parameters" in reported["fsdp"][0]["nan"]["says"][0]
