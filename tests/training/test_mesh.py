"""Several processes train as one does: the same rows, losses, gradients and files, within rounding."""

import dataclasses
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.hf_storage  # here, once: each forked process would import them anew
import torch.distributed.fsdp
import torch.multiprocessing as processes
from safetensors.torch import load_file, save_file
from tests.objectives.recorded_objective import at
from tests.objectives.test_ppo import VALUED, rollouts_with_values
from tests.objectives.test_preference import drawn as preferences
from tests.objectives.test_reward import RATING
from tests.objectives.test_reward import drawn as pairs

from limpid.cli import main
from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.model.spread import whole
from limpid.objectives import DPO, KTO, NEXT_TOKEN, PPO, Reward
from limpid.run import Run
from limpid.training import checkpoint
from limpid.training.loop import loop
from limpid.training.mesh import Mesh, open_mesh
from limpid.training.record import record_step
from limpid.training.start import resume, share_micro_batches, start
from limpid.training.state import State, fresh_state
from limpid.training.step import backward, step
from limpid.training.update import clip, read_moments, update
from small import config as small_config
from small import quiet

WORLD = 2
RULES = ("adamw", "muon", "momentum")
CPU = torch.device("cpu")
CONFIG = TrainConfig(
    ModelConfig(
        vocab_size=37, context_length=8, d_model=24, num_layers=2, num_heads=4, num_kv_heads=2, d_ff=40, qk_norm=True
    ),
    run=RunConfig(max_steps=4, batch_size=2, gradient_accumulation_steps=4, precision="fp32", threads=1),
)
ANSWERS = (
    (DPO(loss_type="ipo"), preferences, at("fp32")),
    (PPO(), rollouts_with_values, at("fp32", VALUED)),
    (KTO(), preferences, at("fp32")),
    (Reward(), pairs, at("fp32", RATING)),
)
Together = Callable[..., None]


def with_rule(rule: str, frozen: tuple[str, ...] = ()) -> TrainConfig:
    """No gradient is clipped, so that equal gradients make equal updates."""
    update = UpdateConfig(optimizer=rule, warmup_steps=1, max_grad_norm=1e9, frozen=frozen)
    return dataclasses.replace(CONFIG, update=update)


def with_model(**options: object) -> TrainConfig:
    config = with_rule("adamw")
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **options))


def with_run(**options: object) -> TrainConfig:
    config = with_rule("adamw")
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **options))


SETTINGS = (
    *(with_rule(rule) for rule in RULES),
    *(with_run(precision=precision) for precision in ("bf16", "fp16", "fp64")),
    with_run(gradient_checkpointing="on"),
    with_model(dropout=0.2),
    with_model(tied=False),
    with_model(lora_rank=4, use_dora=True),
    with_rule("muon", frozen=("blocks.0.*", "embed.*")),
)
"""Each way of taking a step that changes what processes have to share."""


def batches(count: int, model: ModelConfig = CONFIG.model) -> list[list[MicroBatch]]:
    """Four micro-batches a step, each with another number of labels."""
    rng, drawn = np.random.default_rng(3), []
    for place in range(4 * count):
        tokens = rng.integers(0, model.vocab_size, (2, model.context_length + 1))
        targets = tokens[:, 1:].copy()
        targets[0, 3 + place % 4 :] = -100
        drawn.append(MicroBatch({"tokens": tokens[:, :-1], "targets": targets}))
    return [drawn[4 * place : 4 * place + 4] for place in range(count)]


def _process(rank: int, work: Callable[..., None], folder: Path, arguments: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    with open_mesh() as mesh:
        work(mesh, *arguments)
    dist.destroy_process_group()


@pytest.fixture
def together(here: Path) -> Together:
    """Runs a function on two processes in this test's folder; forked, which spares them the seconds of importing."""

    def run(work: Callable[..., None], *arguments: object) -> None:
        (here / "rendezvous").unlink(missing_ok=True)
        processes.start_processes(_process, (work, here, arguments), nprocs=WORLD, start_method="fork")

    return run


def magnitudes(state: State, batch: list[MicroBatch], config: TrainConfig) -> dict[str, torch.Tensor]:
    """Σ |gradient| over the micro-batches of a step, for every entry of every trained parameter."""
    total: dict[str, torch.Tensor] = {}
    labels = [NEXT_TOKEN.labels(micro) for micro in batch]
    for place, count in enumerate(labels):
        alone = [micro if at == place else unlabelled(micro) for at, micro in enumerate(batch)]
        backward(state, alone, config)
        for name, gradient in gradients(state).items():
            total[name] = total.get(name, 0) + gradient.abs() * count / sum(labels)
    return total


def unlabelled(micro: MicroBatch) -> MicroBatch:
    return MicroBatch(dict(micro.arrays) | {"targets": np.full_like(micro["targets"], -100)})


def gradients(state: State) -> dict[str, torch.Tensor]:
    """Whole gradients of the trained parameters, multiplied by the loss scale."""
    parameters = state.model.named_parameters()
    return {name: whole(parameter.grad).clone() for name, parameter in parameters if parameter.grad is not None}


class Gradients:
    """A recorder that keeps a step's gradients."""

    def observe(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return value

    def gradients(self, state: State) -> None:
        self.kept = gradients(state)


def steps_are_alike(mesh: Mesh, config: TrainConfig) -> None:
    spread, alone, recorder = fresh_state(config, mesh), fresh_state(config, Mesh(CPU)), Gradients()
    assert all(hasattr(parameter, "full_tensor") for parameter in spread.model.parameters())
    for batch in batches(2):
        sizes = magnitudes(alone, batch, config)
        losses = backward(alone, batch, config)
        outcome = step(spread, batch, config, recorder=recorder)
        assert outcome.labels == tuple(NEXT_TOKEN.labels(micro) for micro in batch)
        assert outcome.micro_losses == tuple(float(loss.value) for loss in losses)
        assert recorder.kept.keys() == gradients(alone).keys()
        for name, gradient in recorder.kept.items():
            parameter = alone.model.get_parameter(name)
            # the same four gradients, added in two orders: three roundings each, of at most half an ulp of Σ |gradient|
            rounding = 3 * torch.finfo(gradient.dtype).eps * sizes[name]
            assert ((gradient - parameter.grad).abs() <= rounding).all(), (config, name)
            parameter.grad = gradient
        norm = clip(alone.model, alone.optimizer, alone.scaler, config.update.max_grad_norm)
        assert outcome.grad_norm == pytest.approx(norm, rel=1e-6)
        update(alone.optimizer, alone.scaler, outcome.learning_rate, finite=True)
        alone.step, alone.updates = spread.step, spread.updates
        for (name, ours), theirs in zip(spread.model.named_parameters(), alone.model.parameters(), strict=True):
            # a kernel's vectors and what is left over of them may round otherwise: a piece has other leftovers
            rounding = 4 * torch.finfo(theirs.dtype).eps * (theirs.abs() + outcome.learning_rate)
            assert ((whole(ours) - theirs).abs() <= rounding).all(), (config, name)
            theirs.data.copy_(whole(ours))


def steps_of_every_setting_are_alike(mesh: Mesh) -> None:
    for config in SETTINGS:
        steps_are_alike(mesh, config)


def test_a_step_of_two_processes_is_that_of_one(together: Together) -> None:
    together(steps_of_every_setting_are_alike)


def objectives_are_alike(mesh: Mesh) -> None:
    """Preferences and rewards: losses, norms and metrics, whichever process has which answers."""
    for objective, draw, config in ANSWERS:
        spread, alone = fresh_state(config, mesh), fresh_state(config, Mesh(CPU))
        batch = [draw(alone, seed) for seed in range(4)]
        ours, theirs = step(spread, batch, config, objective), step(alone, batch, config, objective)
        assert ours.micro_losses == theirs.micro_losses
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-6)
        assert dict(ours.metrics) == pytest.approx(dict(theirs.metrics), rel=1e-6)


def test_a_step_on_answers_of_two_processes_is_that_of_one(together: Together) -> None:
    together(objectives_are_alike)


def overflow_on_one_process(mesh: Mesh) -> None:
    """float16: one process alone sees the infinity, and both leave out the update and lower the scale."""
    config = with_run(precision="fp16")
    state = fresh_state(config, mesh)
    before = {name: whole(parameter).clone() for name, parameter in state.model.named_parameters()}
    state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    batch = batches(1)[0]
    labelled_by_one = [micro if place % WORLD == 0 else unlabelled(micro) for place, micro in enumerate(batch)]
    outcome = step(state, labelled_by_one, config)
    assert not outcome.updated
    assert state.scaler.get_scale() == 2.0**39
    assert all(torch.equal(whole(parameter), before[name]) for name, parameter in state.model.named_parameters())


def test_an_overflow_on_one_process_is_that_of_all(together: Together) -> None:
    together(overflow_on_one_process)


def decisions_are_the_main_ones(mesh: Mesh) -> None:
    assert mesh.agree(("fp32", mesh.rank)) == ("fp32", 0)
    assert mesh.decided(lambda: mesh.rank) == 0
    assert mesh.any(mesh.rank == 1)
    assert not mesh.any(False)
    assert float(mesh.all_sum(torch.tensor(float(mesh.rank + 1)))) == 3
    assert mesh.joined([float(item) for item in mesh.share(range(4))], 4) == (0, 1, 2, 3)
    assert len(list(mesh.share_evenly("abc"))) == 2
    assert int(mesh.all_sum(torch.tensor(sum(counts for _, counts in mesh.share_evenly("abc"))))) == 3

    def fails() -> None:
        raise ConfigError(f"said by {mesh.rank}")

    with pytest.raises(ConfigError, match="said by 0"):
        mesh.decided(fails)


def test_what_the_main_process_decides_holds_for_all_and_so_does_its_error(together: Together) -> None:
    together(decisions_are_the_main_ones)


def trained(config: TrainConfig, mesh: Mesh) -> State:
    state = fresh_state(config, mesh)
    for batch in batches(2):
        step(state, batch, config)
    return state


def tensors(state: State, config: TrainConfig) -> dict[str, torch.Tensor]:
    """Weights and moments in one piece."""
    parameters = {name: parameter.detach() for name, parameter in state.model.named_parameters()}
    moments = read_moments(state.model, state.optimizer, config.update)
    return {name: whole(tensor) for name, tensor in (parameters | moments).items()}


def saved_and_resumed(mesh: Mesh, rule: str) -> None:
    config, run = with_rule(rule), Run(Path(rule))
    state = trained(config, mesh)
    checkpoint.save(run, state, config, "data")
    before = tensors(state, config)
    if mesh.is_main:
        save_file(before, f"{rule}.safetensors")
    resumed = fresh_state(config, mesh)
    checkpoint.load(run, 2, resumed, config)
    after = tensors(resumed, config)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    batch = batches(3)[2]
    assert step(state, batch, config) == step(resumed, batch, config)


def saved_and_resumed_under_every_rule(mesh: Mesh) -> None:
    for rule in RULES:
        saved_and_resumed(mesh, rule)


def test_a_checkpoint_of_two_processes_is_resumed_by_two_and_by_one_bit_for_bit(together: Together) -> None:
    for rule in RULES:
        Path(rule).mkdir()
    together(saved_and_resumed_under_every_rule)
    for rule in RULES:
        config, run = with_rule(rule), Run(Path(rule))
        files = {file.name for file in run.checkpoint(2).iterdir()}
        written = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
        assert files == written  # as of one process
        before, resumed = load_file(f"{rule}.safetensors"), fresh_state(config)
        checkpoint.load(run, 2, resumed, config)
        after = tensors(resumed, config)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert resumed.step == resumed.updates == 2


def resumed_from_one(mesh: Mesh) -> None:
    config, resumed = with_rule("adamw"), fresh_state(with_rule("adamw"), mesh)
    checkpoint.load(Run(Path("saved")), 2, resumed, config)
    before, after = load_file("before.safetensors"), tensors(resumed, config)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_checkpoint_of_one_process_is_resumed_by_two(together: Together) -> None:
    config = with_rule("adamw")
    state = trained(config, Mesh(CPU))
    Path("saved").mkdir()
    checkpoint.save(Run(Path("saved")), state, config, "data")
    save_file(tensors(state, config), "before.safetensors")
    together(resumed_from_one)


def recording_is_refused(mesh: Mesh) -> None:
    state = fresh_state(CONFIG, mesh)
    with pytest.raises(ConfigError, match=r"recording a step needs one process, and there are 2: .*limpid trace"):
        record_step(Path("step.safetensors"), state, batches(1)[0], CONFIG, run="run", token_text=str)


def test_a_step_of_several_processes_is_recorded_by_replaying_it_in_one(together: Together) -> None:
    together(recording_is_refused)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _typed(rank: int, words: list[str], port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # what torchrun sets
    assert main(words) == 0


@pytest.mark.parametrize("parallel", ["shard=2", "tensor=2"])
def test_a_run_of_two_processes_is_that_of_one(here: Path, data: Path, parallel: str) -> None:
    """As torchrun starts it: one folder, the same rows, the same losses; resumed by one, replayed by one."""
    model = {"num_heads": 2}
    loop(start(small_config(data, model=model, batch_size=4, max_steps=6), "one", quiet()), quiet(), lambda *_: "")
    options = (
        "--tokenizer bytes --context-length 16 --d-model 24 --num-layers 2 --num-heads 2 --d-ff 40 --threads 1 "
        "--max-steps 6 --batch-size 4 --eval-steps 5 --save-steps 4 --precision fp32 --warmup-steps 3 --name two "
        f"--parallel {parallel}"
    )
    processes.start_processes(
        _typed, (["train", str(data), *options.split()], free_port()), nprocs=WORLD, start_method="fork"
    )
    runs = [Run(here / "runs" / name) for name in ("one", "two")]
    one, two = ([json.loads(line) for line in run.metrics_file.open()] for run in runs)
    assert [entry["step"] for entry in two] == [entry["step"] for entry in one]
    for first, second in zip(one, two, strict=True):
        # the first step differs in the order of sums alone; AdamW makes more of it from then on
        kind = "loss" if "loss" in first else "eval_loss"
        assert second[kind] == pytest.approx(first[kind], rel=1e-6 if first["step"] == 1 else 1e-4)
    rows = [[row for line in run.micro_batches_file.open() for row in json.loads(line)["rows"]] for run in runs]
    assert rows[0] == rows[1]
    assert "ranks-same-data" not in (here / "runs" / "two" / "findings.jsonl").read_text()
    assert sorted(entry.name for entry in (here / "runs").iterdir()) == ["one", "two"]
    assert (here / "runs" / "two" / "model" / "model.safetensors").is_file()
    run = runs[1]
    assert run.checkpoint_steps() == [0, 4, 5, 6]
    loop(resume(run, 8, quiet()), quiet(), lambda *_: "")
    assert run.latest_checkpoint() == 8


def test_micro_batches_are_cut_so_that_processes_share_them_evenly(data: Path) -> None:
    config = small_config(data, batch_size=6, gradient_accumulation_steps=1, eval_batches=3)
    shared = share_micro_batches(config, 3).run
    assert (shared.batch_size, shared.gradient_accumulation_steps, shared.eval_batches) == (2, 3, 9)
    assert share_micro_batches(config, 1) == config
    with pytest.raises(ConfigError, match=r"a step has 6 rows .* 4 processes cannot share evenly"):
        share_micro_batches(config, 4)
