"""Records of other tools, and of ours, from the command line: what is read, what is said, what is refused."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from limpid.cli import main
from limpid.doctor.logs import read_record
from limpid.doctor.logs.table import Curves
from limpid.doctor.report import diagnose
from limpid.doctor.rules import RULES
from limpid.errors import CheckpointError


def falling(count: int, seed: int = 0) -> list[float]:
    scatter = random.Random(seed)
    return [2 + 3 * math.exp(-i / 60) + scatter.gauss(0, 0.03) for i in range(count)]


def trainer_state(path: Path, losses: list[float], norms: list[float], rates: list[float]) -> Path:
    history = [
        {"loss": loss, "grad_norm": norm, "learning_rate": rate, "epoch": i / 100, "step": 10 * (i + 1)}
        for i, (loss, norm, rate) in enumerate(zip(losses, norms, rates, strict=True))
    ]
    file = path / "trainer_state.json"
    file.write_text(json.dumps({"log_history": history, "max_steps": 10 * len(losses)}))
    return file


def alarms(curves: Curves) -> list[str]:
    return [finding.rule for finding in diagnose(curves) if finding.is_said]


def cosine(count: int) -> list[float]:
    return [1e-3 * (0.55 + 0.45 * math.cos(math.pi * i / count)) for i in range(count)]


def test_a_healthy_record_of_the_trainer_raises_no_alarm(tmp_path: Path) -> None:
    file = trainer_state(tmp_path, falling(300), [1.0 + 0.1 * math.sin(i) for i in range(300)], cosine(300))
    curves = read_record(file)
    assert curves.kind == "trainer_state.json"
    assert len(curves.steps) == 300
    assert alarms(curves) == []
    assert read_record(tmp_path).steps == curves.steps


def test_a_loss_of_zero_is_read_as_a_nan_with_what_went_before(tmp_path: Path) -> None:
    losses = falling(290) + [0.0] * 10
    norms = [1.0] * 280 + [2.0**i for i in range(20)]
    curves = read_record(trainer_state(tmp_path, losses, norms, cosine(300)))
    first = diagnose(curves)[0]
    assert (first.rule, first.step) == ("not-finite", 2910)
    assert "fold just before" in first.says


@pytest.mark.parametrize("way", ["csv", "tsv", "jsonl", "wandb", "nanogpt", "dicts", "tensorboard"])
def test_the_same_curve_is_read_from_every_kind_of_record(way: str, tmp_path: Path) -> None:
    losses = [round(loss, 4) for loss in falling(60)]
    pairs = list(enumerate(losses))
    texts = {
        "csv": "step,train_loss\n" + "".join(f"{i},{x}\n" for i, x in pairs),
        "tsv": "global_step\ttrain/loss\n" + "".join(f"{i}\t{x}\n" for i, x in pairs),
        "jsonl": "".join(json.dumps({"step": i, "train": {"loss": x}}) + "\n" for i, x in pairs) + '{"step": 60, "tr',
        "wandb": '"Step","run-7 - train/loss","run-7 - train/loss__MIN"\n'
        + "".join(f'"{i}","{x}","0"\n' for i, x in pairs),
        "nanogpt": "number of parameters: 10.65M\nstep 0: train loss 4.1, val loss 4.2\n"
        + "".join(f"iter {i}: loss {x}, time 402.12ms, mfu -100.00%\n" for i, x in pairs),
        "dicts": "".join(f"{{'loss': {x}, 'grad_norm': 1.0, 'learning_rate': 1e-3, 'step': {i}}}\n" for i, x in pairs),
    }
    endings = {"csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "wandb": "csv", "nanogpt": "log", "dicts": "txt"}
    if way == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(tmp_path))
        for i, x in pairs:
            writer.add_scalar("train/loss", x, i)
        writer.close()
        file = tmp_path
    else:
        file = tmp_path / f"record.{endings[way]}"
        file.write_text(texts[way])
    curves = read_record(file)
    points = (
        curves.series["loss"][1:] if way == "nanogpt" and len(curves.series["loss"]) == 61 else curves.series["loss"]
    )
    assert [step for step, _ in points] == list(range(60))
    assert [value for _, value in points] == pytest.approx(losses, rel=1e-6)


def lines(shape: str, numbers: list[float]) -> str:
    return "".join(shape.format(i=i, x=x, y=x + 0.1) for i, x in enumerate(numbers))


ODD_RECORDS = {
    "keras.log": "Epoch {i}/120\n100/100 [====] - 1s 10ms/step - loss: {x:.4f} - accuracy: 0.5 - val_loss: {y:.4f}\n",
    "progress.log": "\r{i}%|██| {i}/60 [00:01<00:02, 3it/s]\n2024-05-01 12:00:00,123 INFO iter {i}: loss {x:.4f}\n",
    "bar.log": "\rEpoch 1: {i}%|██| {i}/60 [00:01<00:02, 3.45it/s, v_num=0, train_loss={x:.4f}]",
    "llm.c.log": "step {i}/19560 | loss {x:.4f} (+nanz)| norm 15.3 (+nanz)| lr 8.57e-07 | 3056.36 ms | 171536 tok/s\n",
    "megatron.log": " iteration {i}/ 500 | samples: 64 | lm loss: {x:.6E} | loss scale: 1.0 | grad norm: 1.2 |\n",
    "colours.log": "\x1b[31m[rank0]: root - INFO - step: {i}  loss: {x:.4f}  grad_norm:  1.3  tps: 7,111\x1b[0m\n",
    "words.txt": "{{'loss': '{x:.4f}', 'grad_norm': '1.1', 'learning_rate': '5e-05', 'step': {i}}}\n",
    "names.csv": "Iteration,Training Loss,Val. Loss,LR|{i},{x:.4f},{y:.4f},1e-3\n",
    "decimal.csv": "step;cross_entropy|{i};{x:.4f}\n",
    "runs.csv": '"Step","a - _step","a - loss","a - loss__MIN","b - loss"|"{i}","{i}","{x:.4f}","0",""\n',
    "history.csv": "_step,_runtime,train/loss,train/global_step,eval/loss|{i},1.5,{x:.4f},{i},\n",
    "both.jsonl": '{{"_step": {i}, "loss": 99.0, "train/loss": {x:.4f}}}\n',
    "nested.jsonl": '{{"iteration": {i}, "metrics": {{"train": {{"loss": {x:.4f}}}}}}}\n',
    "cut.jsonl": '{{"step": {i}, "loss": {x:.4f}}}\n',
    "run/files/output.log": "iter {i}: loss {x:.4f}, time 1ms\n",
    "version_0/metrics.csv": "epoch,step,train_loss_step,val_loss|0,{i},{x:.4f},\n",
}


@pytest.mark.parametrize("name", ODD_RECORDS)
@pytest.mark.parametrize("by", ["file", "folder"])
def test_records_as_tools_write_them(name: str, by: str, tmp_path: Path) -> None:
    losses = [round(loss, 4) for loss in falling(60)]
    head, line = ODD_RECORDS[name].split("|", 1) if name.endswith("csv") else ("", ODD_RECORDS[name])
    body = lines(line, losses)
    text = f"{head}\n{body}" if head else body
    if name == "decimal.csv":
        text = text.replace(".", ",")
    if name == "cut.jsonl":
        text += '{"step": 60, "lo'
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-16" if name == "names.csv" else "utf-8")
    (tmp_path / "a-note.txt").write_text("warm up more next time")
    curves = read_record(file if by == "file" else tmp_path)
    assert curves.values("loss") == pytest.approx(losses, abs=1e-4)
    assert len(set(curves.steps)) == 60
    assert alarms(curves) == []
    assert bool(curves.notes) == (name in ("both.jsonl", "cut.jsonl"))


def test_nulls_and_words_for_nan_in_the_state_of_a_trainer(tmp_path: Path) -> None:
    history: list[dict[str, Any]] = [
        {"step": i, "loss": "NaN" if i == 50 else x if i % 7 else None, "grad_norm": None}
        for i, x in enumerate(falling(60))
    ]
    history.append({"step": 60, "train_runtime": 1.0, "train_loss": 2.5})
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": None}))
    (tmp_path / "config.json").write_text("{broken")
    curves = read_record(tmp_path)
    assert curves.steps == [i for i in range(60) if i % 7 or i == 50]
    assert [(finding.rule, finding.step) for finding in diagnose(curves)] == [("not-finite", 50)]
    assert curves.notes == ["config.json beside it is no JSON and was left out"]


def test_scalars_that_are_written_as_tensors(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter(str(tmp_path))
    for i, loss in enumerate(falling(30)):
        value = Summary.Value(tag="loss/train", tensor=make_tensor_proto(loss, "float32"))
        writer.add_event(Event(step=i, summary=Summary(value=[value])))
    writer.close()
    assert read_record(tmp_path).values("loss") == pytest.approx(falling(30))


def curves_of(losses: list[float], **series: list[float]) -> Curves:
    made = Curves("here", "made up")
    for i, loss in enumerate(losses):
        made.add(i, [("loss", loss), *((name, values[i]) for name, values in series.items() if i < len(values))])
    return made


def test_what_curves_alone_can_tell() -> None:
    assert alarms(curves_of(falling(400), learning_rate=[max(0, 1e-3 * (1 - i / 50)) for i in range(400)]))[0] == (
        "schedule-per-micro-batch"
    )
    assert alarms(curves_of(falling(200) + [6.0 + 0.01 * i for i in range(60)])) == ["loss-diverges"]
    summed = curves_of([x * 2048 for x in falling(100)])
    assert alarms(summed) == ["loss-summed"]
    added = curves_of([x * 4 * math.log(256) / 5 for x in falling(100)])
    added.vocab = 256
    assert alarms(added) == ["accumulation-not-divided"]
    flat = curves_of(falling(50) + [2.5] * 30)
    assert "weights-never-change" in alarms(flat)
    resumed = curves_of(falling(100))
    for i, loss in enumerate(falling(60, 1)):
        resumed.add(200 + i, [("loss", loss + 1.5)])
    assert "resume-is-not-one" in alarms(resumed)


def test_spikes_that_recover_and_warm_restarts_raise_no_alarm() -> None:
    losses = falling(400)
    losses[150] += 3
    losses[300] += 2
    assert alarms(curves_of(losses)) == []
    restarts = [1e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * (i % 100) / 100))) for i in range(400)]
    bumped = [x + (0.2 * math.exp(-(i % 100) / 8) if i >= 100 else 0) for i, x in enumerate(falling(400))]
    assert alarms(curves_of(bumped, learning_rate=restarts)) == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["doctor", "no-such-run"], "is no run, file or folder"),
        (["doctor", "--explain", "no-such-rule"], "there is no rule"),
        (["doctor", "--explain", "decay-on-gain"], "did you mean decay-on-gains"),
        (["doctor", "--preflight", "--explain", "not-finite"], "leave one out"),
        (["doctor", "hello.log"], "no loss in"),
        (["doctor", "empty.csv"], "is empty"),
        (["doctor", "started"], "is empty"),
        (["doctor", "odd.csv"], "found perplexity_x; rename"),
        (["doctor", "half.json"], "ends in the middle"),
        (["doctor", "noise.log"], "no loss in"),
        (["doctor", "bad.json"], "is not JSON"),
        (["doctor", "folder"], "holds no record"),
    ],
)
def test_mistakes_are_one_line(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hello.log").write_text("hello\n")
    Path("empty.csv").touch()
    Path("started").mkdir()
    Path("started/metrics.jsonl").touch()
    Path("odd.csv").write_text("step,perplexity_x\n1,2\n")
    Path("half.json").write_text('{"log_history": [{"loss": 1.0}, {"lo')
    Path("noise.log").write_bytes(bytes(range(256)) * 20)
    Path("bad.json").write_text("{nope")
    Path("folder").mkdir()
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("slug", RULES)
def test_every_rule_is_explained(slug: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor", "--explain", slug]) == 0
    assert main(["doctor", "--explain", slug, "--json"]) == 0
    out = capsys.readouterr().out
    assert RULES[slug].source[:20] in out
    assert "\\lVert" not in out.split("{")[0]


def test_a_few_losses_are_not_judged_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    log = tmp_path / "nano.log"
    log.write_text("".join(f"iter {i}: loss {v}, time 10.0ms\n" for i, v in enumerate((10.9, 9.1, 12.1, 15.1))))
    assert main(["doctor", str(log)]) == 0
    assert "4 losses are too few to judge" in capsys.readouterr().out


def test_a_pipe_in_the_place_of_events_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.out.tfevents.1")
    with pytest.raises(CheckpointError, match=r"tfevents\.1 is no file"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    "long", ["a" + " " * 300_000, "a" * 300_000, "ab " * 100_000, "1" * 300_000 + "x", "a=" * 150_000]
)
def test_a_line_without_end_is_passed_over(long: str, tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("".join(f"iter {step}: loss {4 - step / 10:.4f}, time 20.00ms\n{long}\n" for step in range(5)))
    assert read_record(log).values("loss") == pytest.approx([4.0, 3.9, 3.8, 3.7, 3.6])


@pytest.mark.parametrize("step", ["1e308", "9" * 400, "-1e30", "nan", "inf"])
@pytest.mark.parametrize("loss", ["5.6", "1e300", "800", "1e-300"])
def test_steps_and_losses_of_any_size_are_diagnosed(step: str, loss: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    rows = [f"{number},{loss},1.0\n" for number in range(1, 60)]
    file.write_text("step,loss,grad_norm\n" + "".join(rows) + f"{step},{loss},1.0\n" * 3)
    found = read_record(file)
    assert max(found.steps) < 2**53
    assert all("\n" not in finding.says for finding in diagnose(found))
