"""The command line end to end: what a user types, sees and gets wrong."""

import functools
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

from limpid.cli import main
from limpid.source import find_run
from small import WORDS, corpus

TINY = (  # noqa: SIM905
    "--tokenizer bytes --context-length 16 --d-model 24 --num-layers 2 --num-heads 3 --batch-size 3 --precision fp32 "
    "--threads 1 --eval-steps 5 --save-steps 4 --warmup-steps 2"
).split()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and one finished run of eight steps, runs/small."""
    folder = tmp_path_factory.mktemp("place")
    corpus(folder / "corpus")
    before = Path.cwd()
    os.chdir(folder)
    os.environ["LIMPID_CACHE"] = str(folder / "cache")
    try:
        assert main(["train", "corpus", "--name", "small", "--max-steps", "8", *TINY]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("LIMPID_CACHE", str(place / "cache"))
    return place


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a wrong command answers with."""
    assert main(list(words)) == 2
    shown = capsys.readouterr()
    lines = shown.err.strip().splitlines()
    assert len(lines) == 1, shown.err
    assert lines[0].startswith("limpid: error: ")
    assert "Traceback" not in shown.out
    return lines[0]


def test_training_says_where_everything_lies_and_what_to_type_next(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "corpus", "--name", "told", "--max-steps", "3", "--doctor", "no", *TINY]) == 0
    shown = capsys.readouterr().out
    assert "findings.jsonl" not in shown  # nobody looked
    assert " of this process at most" in shown
    assert "doctor no" in shown
    prompt = re.search(r"limpid generate runs/told '(.+)'  ", shown)
    assert prompt is not None
    assert set(prompt[1].split()) <= set(WORDS)
    for word in (
        "runs/told/",
        "metrics.jsonl",
        "micro_batches.jsonl",
        "limpid trace runs/told",
        "limpid generate runs/told",
    ):
        assert word in shown
    for name in ("config.toml", "metrics.jsonl", "micro_batches.jsonl", "model/config.json", "model/model.safetensors"):
        assert (there / "runs/told" / name).is_file()


def test_the_plan_of_a_run_shows_what_its_process_held(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "small"]) == 0
    assert "process here" in capsys.readouterr().out
    assert main(["plan", "small", "--batch-size", "7"]) == 0
    assert "process here" not in capsys.readouterr().out  # which is of the run as it was


def test_low_rank_factors_are_trained_beside_the_weights_of_a_run(there: Path) -> None:
    begun = ["train", "corpus", "--init-from", "small", "--name", "adapted", *TINY[10:]]
    assert main([*begun, "--lora-rank", "2", "--lora-targets", "attention.*", "--max-steps", "2"]) == 0
    model = find_run("adapted").read_config().model
    assert (model.d_model, model.lora_rank, model.lora_targets) == (24, 2, ("attention.*",))


def test_a_run_is_opened_and_agrees(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "runs/small"]) == 0
    story = capsys.readouterr().out
    for word in ("attention.scores", "loss", "AdamW", "lie within their rounding bounds"):
        assert word.lower() in story.lower()


@pytest.mark.parametrize("step", [None, 1, 3, 8])
def test_any_step_is_one_json_document(there: Path, capsys: pytest.CaptureFixture[str], step: int | None) -> None:
    assert main(["trace", "runs/small", "--json", *(("--step", str(step)) if step else ())]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"JSON has no {word}"))
    assert document["step"] == (step or 8)
    assert document["verdict"]["agrees"]
    metrics = [json.loads(line) for line in (there / "runs/small/metrics.jsonl").read_text().splitlines()]
    loss = next(line["loss"] for line in metrics if line.get("step") == document["step"] and "loss" in line)
    assert document["loss"]["value"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("blocks.0.attention.scores", "blocks.0.attention.scores"),
        ("grad(blocks.1.mlp.up.weight)", "grad(blocks.1.mlp.up.weight)"),
        ("v(embed.tokens.weight)", "v(embed.tokens.weight)"),
        ("lm_head.weight", "embed.tokens.weight"),
        ("model.layers.1.self_attn.q_proj", "blocks.1.attention.query"),
        ("blocks.0.hook_resid_post", "blocks.0.residual2"),
    ],
)
def test_one_quantity_under_any_of_its_names(
    there: Path, capsys: pytest.CaptureFixture[str], asked: str, found: str
) -> None:
    assert main(["trace", "runs/small", "--quantity", asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"JSON has no {word}"))
    assert document["name"] == found
    assert main(["trace", "runs/small", "--quantity", asked]) == 0
    assert found in capsys.readouterr().out


def test_generation_repeats_with_its_seed(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = []
    for _ in range(2):
        assert main(["generate", "runs/small", "the cat", "a ", "--json", "--max-new-tokens", "7", "--seed", "3"]) == 0
        made.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert made[0] == made[1]
    assert [one["prompt"] for one in made[0]] == ["the cat", "a "]


def test_a_run_goes_on_and_says_so_when_there_is_nothing_left(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "corpus", "--name", "more", "--max-steps", "4", *TINY]) == 0
    assert main(["train", "--resume", "runs/more"]) == 0
    assert "already at step 4 of 4: extend it with --max-steps 8" in capsys.readouterr().out
    assert main(["train", "--resume", "runs/more", "--max-steps", "6"]) == 0
    assert "max_steps 5 lies before step 6" in refused(capsys, "train", "--resume", "runs/more", "--max-steps", "5")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tarin", "unknown verb 'tarin'"),
        ("train corpus --widht 3", "--widht"),
        ("train corpus --n-embd 64", "d_model 64 does not divide"),
        ("train corpus --d-model 25 --num-heads 3", "d_model 25 does not divide into num_heads 3"),
        ("train corpus --num-heads 4 --num-kv-heads 3", "num_kv_heads 3"),
        ("train corpus --max-steps none", "none"),
        ("train corpus --optimizer adamm", "adamm"),
        ("train nowhere.txt", "nowhere.txt"),
        ("train empty.txt", "empty"),
        ("train tiny.txt --tokenizer bytes", "2 tokens"),
        ("train binary.bin", "binary.bin"),
        ("train latin.txt", "latin.txt"),
        ("train broken.gz", "broken.gz"),
        ("train broken.jsonl", "broken.jsonl"),
        ("train --config nowhere.toml", "nowhere.toml"),
        ("train --config wrong.toml", "wrong.toml"),
        ("train corpus --init-from nowhere", "nowhere"),
        ("train corpus --init-from gemma", "gemma"),
        ("train --resume nowhere", "nowhere"),
        ("train --resume small --learning-rate 3", "learning-rate"),
        ("trace nowhere", "nowhere"),
        ("trace small --step 9", "9"),
        ("trace small --step 0", "0"),
        ("trace small --step -2", "2"),
        ("trace small --quantity blocks.0.attention.scorse", "blocks.0.attention.scores"),
        ("trace small --quantity blocks.7.mlp.up", "blocks.7.mlp.up"),
        ("trace small --quantity transformer.h.0.attn.c_attn.weight", "blocks.0.attention.query.weight"),
        ("trace notarecord", "notarecord"),
        ("trace runs/small/model", "--text"),
        ("trace runs/small/model --text x --step 3", "--step"),
        ("trace truncated --text hello", "truncated"),
        ("generate small " + 40 * "x", "40 tokens"),
        ("generate small a --temperature -1", "temperature"),
        ("generate nowhere a", "nowhere"),
        ("generate truncated a", "truncated"),
        ("generate", "MODEL"),
        ("chat nowhere", "nowhere"),
        ("train nowhere --minutes 5 --schedule cosine", "schedule is cosine"),
        ("train nowhere.txt --name last", "nowhere.txt does not exist"),
        ("train corpus --name last", "stands for something else"),
        ("train corpus --threads 100000", "it must lie in [0, 8192]"),
        ("train corpus --threads 8000", "more threads than that wait for each other"),
        ("train corpus --max-steps 9 --record-steps 10", "record_steps names step 10"),
        ("train corpus --max-steps 9 --warmup-steps 10", "warmup_steps is 10, and the run has 9 steps"),
        ("train corpus --tokenizer bytes --tokenizer-vocab-size 500", "its own: leave one of them out"),
        ("train corpus --init-from small --d-model 48", "leave out --d-model"),
        ("train corpus --init-from small --tokenizer bpe", "leave out --tokenizer"),
        ("train corpus --d-model 6000000", "of memory at least, and there are"),
        ("train hf:", "hf: names no dataset"),
        ("generate small a --num-beams 4 --temperature 0.8", "so temperature would do nothing"),
        ("generate small a --num-beams 100000000000", "ask for fewer beams"),
        ("generate small a --threads 8000", "more threads than that wait for each other"),
        ("train corpus --init-from small@99", "--init-from small@99: runs/small holds no checkpoint after step 99"),
        ("train corpus --init-from small@-1", "runs/small@-1 names no step"),
        (
            "train corpus --positions learned --rotary-scaling linear --rotary-factor 2",
            "rotary_scaling is linear, which does nothing without positions rotary",
        ),
        ("train corpus --rotary-factor 4", "rotary_factor is 4.0, which does nothing without a rotary_scaling"),
        ("train corpus --rotary-scaling yarn --rotary-factor 2 --rotary-original-context 0", "original_context is 0"),
        (
            "train corpus --rotary-high 5",
            "rotary_high is 5.0, which does nothing without rotary_scaling llama3 or yarn",
        ),
        ("train corpus --decay-fraction 0.5", "does nothing without schedule warmup_stable_decay"),
        ("train corpus --early-stopping 3 --eval-steps 0", "without evaluations: eval_steps is 0"),
        ("train corpus --report-to none,wandb", "report_to is none,wandb: name trackers, or none alone"),
        ("train corpus --validation web=", "validation is web=: expected a file or folder, or NAME=PATH"),
        ("train corpus --lora-alpha 8", "lora_alpha is 8.0, which does nothing without a lora_rank"),
        ("evaluate small --tasks=", "'' is no path"),
        ("train tiny.txt --tokenizer bytes --context-length 9", "or lower --validation-fraction"),
        ("train caf\udce9.txt", "paths is 'caf\\udce9.txt', which UTF-8 cannot hold"),
        ("train corpus --text-field \udfff", "text_field is '\\udfff', which UTF-8 cannot hold"),
        ("generate small a --repetition-penalty 5e-324", "repetition_penalty is 4.94066e-324"),
        ("equations softmax --paper nobody", "no equation matches 'softmax', 'nobody'"),
        ("train corpus --windowed-blocks 0", "which does nothing without an attention_window"),
        ("train ~nobodyatall/text.txt", "~nobodyatall/text.txt begins with a home that does not exist"),
        ("evaluate small ~nobodyatall/text.txt", "a home that does not exist"),
        (f"train {'x' * 100_000}", "xxx…: File name too long"),
        (f"trace {'x' * 100_000}", "xxx…: File name too long"),
        (f"evaluate small corpus --output {'x' * 100_000}", "xxx…: File name too long"),
        (f"train corpus --tokenizer bytes --sample-prompt {'x' * 500}", "sample_prompt 'xxxxx"),
        (f"generate small {'x' * 500}", "the prompt 'xxxxxxx"),
        ("compress small corpus/00.txt -o runs/small/config.toml -f", "config.toml is a file of the model runs/small"),
        ("evaluate small --tasks between.jsonl", "the right answer is 0.5, which lies between two"),
        ("doctor vast.jsonl", "vast.jsonl"),
        ("trace small --worked", "--worked has no use for RUN"),
        ("trace --worked --step 3 --text x", "--worked has no use for --step and --text"),
        ("trace small --rows --quantity loss", "--rows has no use for --quantity"),
        ("trace small --output step.json", "a recorded step ends in .safetensors"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    there: Path, capsys: pytest.CaptureFixture[str], words: str, told: str
) -> None:
    Path("empty.txt").write_text("")
    Path("tiny.txt").write_text("ab")
    Path("binary.bin").write_bytes(bytes(range(256)) * 40)
    Path("latin.txt").write_bytes("naïve über\n".encode("latin-1") * 40)
    Path("broken.gz").write_bytes(gzip.compress(bytes(ord("a") + i * i % 23 for i in range(9999)))[:-20])
    Path("broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    Path("wrong.toml").write_text("[model]\nd_model = 'wide'\n")
    Path("notarecord").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    Path("between.jsonl").write_text('{"query": "a", "choices": ["b", "c"], "gold": 0.5}\n')
    Path("vast.jsonl").write_text(f'{{"step": 1, "loss": {"9" * 5000}}}\n')
    Path("gemma").mkdir(exist_ok=True)
    Path("gemma/config.json").write_text('{"model_type": "gemma"}')
    if not Path("truncated").exists():
        Path("truncated").mkdir()
        for name in ("config.json", "tokenizer.json"):
            Path("truncated", name).write_bytes(Path("runs/small/model", name).read_bytes())
        weights = Path("runs/small/model/model.safetensors").read_bytes()
        Path("truncated/model.safetensors").write_bytes(weights[: len(weights) // 2])
    capsys.readouterr()
    assert told in refused(capsys, *words.split())


@pytest.mark.parametrize("words", [("train", "-"), ("compress", "small", "-"), ("decompress",), ("chat", "small")])
def test_without_standard_input_nothing_is_read_from_it(
    there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    output = () if words[0] in ("train", "chat") else ("-o", "out")
    assert "standard input is closed" in refused(capsys, *words, *output)


def test_a_name_with_a_line_break_stays_on_one_line(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none␊" in refused(capsys, "train", "corpus", "--config", "none\n")
    assert "none␊" in refused(capsys, "trace", "none\n")


def test_a_pipe_to_which_nobody_writes_is_not_awaited_for_ever(
    there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpid.files.WRITER_SECONDS", 0.05)
    os.mkfifo("pipe")
    for words in (
        ("train", "pipe"),
        ("train", "corpus", "--config", "pipe"),
        ("train", "corpus", "--tokenizer", "pipe"),
        ("evaluate", "small", "--tasks", "pipe"),
        ("doctor", "pipe"),
        ("compress", "small", "pipe", "-o", "out"),
    ):
        assert "pipe is a pipe, and nobody came to write to it" in refused(capsys, *words)
    Path("pipe").unlink()


def test_a_device_without_end_is_left_at_some_point(
    there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpid.files.LONGEST_STREAM", 1000)
    assert "/dev/zero gave 1,000 bytes and came to no end" in refused(capsys, "train", "--config", "/dev/zero")


def test_a_pickle_is_never_opened(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("pickled")
    folder.mkdir()
    folder.joinpath("config.json").write_bytes(Path("runs/small/model/config.json").read_bytes())
    folder.joinpath("pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    assert "safetensors" in refused(capsys, "trace", "pickled", "--text", "x")
    assert not Path("opened").exists()


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "small", "logitz[0, 0, 1]"], "did you mean logits"),
        (["explain", "small", "blocks.0.attention.score"], "did you mean blocks.0.attention.scores"),
        (["trace", "small", "--quantity", "grad(logitz)"], "did you mean logits"),
        (["explain", "small"], "limpid explain small 'logits[0, 0, 7]'"),
    ],
)
def test_what_no_step_has_is_refused_before_one_is_redone(there: Path, capsys, monkeypatch, words, said: str) -> None:
    monkeypatch.setattr("limpid.training.replay.recorded", None)
    assert said in refused(capsys, *words)


def test_a_step_of_a_run_that_cannot_be_written_to_is_kept_elsewhere(there: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: "runs" not in str(path))
    assert "--step 6 --output FILE.safetensors" in refused(capsys, "trace", "small", "--step", "6")
    assert main(["trace", "small", "--step", "6", "--output", "elsewhere/sixth.safetensors"]) == 0
    assert main(["explain", "elsewhere/sixth.safetensors", "loss"]) == 0


def test_models_of_one_name_keep_their_steps_apart(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        shutil.copytree("runs/small/model", f"{folder}/same", dirs_exist_ok=True)
        assert main(["trace", f"{folder}/same", "--text", "the cat"]) == 0
    files = re.findall(r"kept in (\S+);", capsys.readouterr().err)
    assert len(set(files)) == 2
    assert main(["explain", files[0], "logits[0, 0, 1]"]) == 0
    assert "limpid trace a/same --text" in refused(capsys, "explain", "a/same", "logits")


def test_ctrl_c_ends_quietly_while_limpid_is_still_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from limpid.__main__ import main as command

    class Interrupted(types.ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "limpid.cli", Interrupted("limpid.cli"))
    assert command() == 130


def test_ctrl_c_saves_and_says_how_to_go_on(there: Path) -> None:
    words = ["train", "corpus", "--name", "stopped", "--max-steps", "100000", *TINY]
    running = subprocess.Popen(
        [sys.executable, "-m", "limpid", *words], stdout=subprocess.PIPE, text=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )  # fmt: skip
    metrics = there / "runs/stopped/metrics.jsonl"
    while not metrics.is_file() or metrics.read_text().count("\n") < 5:
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    shown, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "limpid train --resume runs/stopped" in shown
    assert main(["trace", "runs/stopped"]) == 0


def test_training_outlives_its_reader(there: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """As `| head` does: what was trained is saved, and where to go on is said on standard error."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["train", "corpus", "--name", "unheard", "--max-steps", "1000", *TINY]) == 130
    shown = capsys.readouterr().err
    assert "standard output was closed" in shown
    assert "limpid train --resume runs/unheard" in shown
    assert find_run("unheard").latest_checkpoint() > 0


def test_a_closed_pipe_ends_quietly(there: Path) -> None:
    command = f"{sys.executable} -m limpid plan gpt2 | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert ended.stdout.count("\n") == 1
    assert ended.stderr == ""
    assert ended.returncode == 0  # 1 would be a check that failed


def test_a_model_whose_weights_diverged_ends_without_a_traceback(there: Path, capsys) -> None:
    """Every float16 update was skipped or absurd: training ends, and sampling says why it cannot."""
    words = "train corpus --name nan --max-steps 6 --precision fp16 --learning-rate 300 --warmup-steps 0"
    sizes = "--tokenizer bytes --context-length 16 --max-grad-norm none --d-model 64 --num-heads 4 --num-layers 2"
    assert main([*words.split(), *sizes.split()]) in (0, 1)
    capsys.readouterr()
    assert main(["generate", "nan", "x"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert main(["explain", "nan", "logits"]) == 0
    assert main(["explain", "nan", "blocks.0.mlp.up.weight"]) == 0


def test_no_memory_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """More than any machine has, asked of PyTorch where no planner was asked before."""
    from limpid.verbs import generate

    monkeypatch.setattr(generate, "verb", lambda words: torch.empty(1 << 50).sum())
    assert "memory ran out" in refused(capsys, "generate", "small")


def test_waiting_threads_sleep_soon_unless_somebody_said_otherwise(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for policy, spins in ((None, "1000"), ("active", None)):
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.delenv(name, raising=False)
        if policy is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        main(["--version"])
        assert os.environ.get("GOMP_SPINCOUNT") == spins
