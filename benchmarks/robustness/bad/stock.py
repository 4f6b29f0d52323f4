"""The valid things that cases are mutations of: texts, runs, models, logs, compressed files. Made once."""

import gzip
import json
import math
import random
import shutil
from pathlib import Path

from benchmarks.robustness.bad.sandbox import aside, build

SMALL = ("--num-layers", "1", "--d-model", "16", "--num-heads", "2", "--context-length", "16", "--batch-size", "2")
SHORT = ("--max-steps", "2", "--warmup-steps", "1", "--eval-batches", "1", "--threads", "1", "--compile", "off")
TRAIN = ("train", "text.txt", *SMALL, *SHORT, "--tokenizer", "bytes")
"""The smallest training, in a second or so."""

TASK = {"query": "The fox jumps over the", "choices": ["dog", "moon", "number"], "gold": 0}


def prose(seed: int, lines: int) -> str:
    """English-looking lines."""
    rng = random.Random(seed)
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "and",
        "says",
        "hello",
        "again",
        "number",
        "river",
        "stone",
        "of",
        "light",
    ]
    return "".join(" ".join(rng.choices(words, k=12)).capitalize() + f" {k}.\n" for k in range(lines))


def _texts(stock: Path) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    text = prose(0, 200)
    documents = [prose(k, 6) for k in range(40)]
    jsonl = "".join(json.dumps({"text": d, "id": k}) + "\n" for k, d in enumerate(documents))
    (stock / "text.txt").write_text(text)
    (stock / "other.txt").write_text(prose(9, 60))
    (stock / "text.jsonl").write_text(jsonl)
    (stock / "text.jsonl.gz").write_bytes(gzip.compress(jsonl.encode()))
    (stock / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    (stock / "text.jsonl.zst").write_bytes(zstandard.compress(jsonl.encode()))
    pq.write_table(pa.table({"text": documents, "id": list(range(40))}), stock / "text.parquet")
    (stock / "tasks.jsonl").write_text("".join(json.dumps(TASK | {"gold": k % 3}) + "\n" for k in range(6)))
    return b""


def curve(step: int) -> dict[str, float]:
    """A healthy run's numbers at a step."""
    noise = random.Random(step).uniform(-0.02, 0.02)
    return {"loss": 1.5 + 4 * math.exp(-step / 60) + noise, "grad_norm": 1.0 + noise, "learning_rate": 1e-3}


def _logs(stock: Path) -> None:
    rows = [{"step": s, **curve(s)} for s in range(1, 201)]
    (stock / "log.csv").write_text(
        "step,loss,grad_norm,learning_rate\n" + "".join(",".join(map(str, r.values())) + "\n" for r in rows)
    )
    (stock / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    history = [{"step": r["step"], "epoch": r["step"] / 100, **curve(int(r["step"]))} for r in rows[::10]]
    state = {"best_metric": None, "epoch": 2.0, "global_step": 200, "max_steps": 200, "log_history": history}
    (stock / "trainer_state.json").write_text(json.dumps(state, indent=1))
    nano = [f"iter {r['step']}: loss {r['loss']:.4f}, time 20.00ms, mfu 3.00%\n" for r in rows]
    (stock / "nano.log").write_text("number of parameters: 10.65M\n" + "".join(nano))
    points = [(n, t) for n in (1e6, 3e6, 1e7, 3e7) for t in (1e8, 3e8, 1e9)]
    law = [(n, t, 1.69 + 406.4 / n**0.34 + 410.7 / t**0.28) for n, t in points]
    (stock / "fit.csv").write_text("params,tokens,loss\n" + "".join(f"{n},{t},{loss:.6f}\n" for n, t, loss in law))


def _events(stock: Path) -> bytes:
    """TensorBoard's file."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(stock / "events")) as writer:
        for step in range(1, 101):
            for name, value in curve(step).items():
                writer.add_scalar(f"train/{name}", value, step)
    return b""


def _models(stock: Path) -> bytes:
    """A GPT-2 and a Llama folder, one of them in shards, with the tokenizer of a run."""
    import torch
    import transformers as tf

    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    llama = tf.LlamaConfig(
        vocab_size=300, hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    gpt2 = tf.GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0)
    tf.LlamaForCausalLM(llama).save_pretrained(stock / "llama", max_shard_size="20KB")
    tf.GPT2LMHeadModel(gpt2).save_pretrained(stock / "gpt2")
    for name in ("llama", "gpt2"):
        for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            if (stock / "runs/a/model" / file).exists():
                shutil.copy(stock / "runs/a/model" / file, stock / name / file)
    return b""


def make(stock: Path) -> None:
    """Fill an empty folder; what is complete is kept."""
    if (stock / "complete").exists():
        return
    shutil.rmtree(stock, ignore_errors=True)
    stock.mkdir(parents=True)
    aside(lambda: _texts(stock))
    _logs(stock)
    aside(lambda: _events(stock))
    a = ("--max-steps", "6", "--save-steps", "3", "--record-steps", "2", "--tokenizer-vocab-size", "280")
    small = [*SMALL, *SHORT]
    build(["train", "text.txt", "--name", "a", *_with(small, *a)], stock)
    b = ("--d-model", "24", "--num-heads", "3", "--max-steps", "4", "--record-steps", "2", "--tokenizer", "bytes")
    build(["train", "text.txt", "--name", "b", *_with(small, *b)], stock)
    build(["generate", "runs/a", "the", "-n", "3"], stock)  # what it compiles is kept for the cases
    (stock / "packed").write_text(prose(1, 12))
    build(["compress", "runs/a", "packed", "-o", "packed.limpid"], stock)
    build(["decompress", "packed.limpid", "-o", "unpacked"], stock)
    aside(lambda: _models(stock))
    (stock / "train.toml").write_text((stock / "runs/a/config.toml").read_text().partition("[resolved")[0])
    (stock / "complete").touch()


def _with(options: list[str], *more: str) -> list[str]:
    """Options, where later values take the place of earlier ones."""
    merged = dict(zip(options[::2], options[1::2], strict=True)) | dict(zip(more[::2], more[1::2], strict=True))
    return [word for pair in merged.items() for word in pair]


def train(**options: object) -> tuple[str, ...]:
    """The smallest training with options of one's own; one that is None is left out."""
    given = {f"--{name.replace('_', '-')}": str(value) for name, value in options.items() if value is not None}
    left_out = {f"--{name.replace('_', '-')}" for name, value in options.items() if value is None}
    merged = dict(zip(TRAIN[2::2], TRAIN[3::2], strict=True)) | given
    return ("train", "text.txt", *(w for k, v in merged.items() if k not in left_out for w in (k, v)))
