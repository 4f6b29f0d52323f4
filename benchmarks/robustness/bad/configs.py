"""Configuration files, TOML, JSON and YAML: a field of the wrong type, sign or size; documents that are none."""

import json
import random
from collections.abc import Callable
from typing import Any

from benchmarks.robustness.bad.case import Cases, Expect, change, have, put
from benchmarks.robustness.bad.damage import DISK, SLIGHT, STRANGE, damage

BASE: dict[str, dict[str, Any]] = {
    "model": {"context_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0, "norm": "rms",
              "tied": True, "rotary_base": 10000.0, "attention_window": 8, "windowed_blocks": [0]},
    "data": {"paths": ["text.txt"], "tokenizer": "bytes", "validation_fraction": 0.1, "text_field": "text"},
    "update": {"optimizer": "adamw", "learning_rate": 0.002, "beta1": 0.9, "max_grad_norm": 1.0, "schedule": "cosine",
               "warmup_steps": 1, "frozen": ["embed.*"], "weight_decay": 0.1, "eps": 1e-8},
    "run": {"max_steps": 1, "batch_size": 2, "seed": 0, "precision": "fp32", "threads": 1, "eval_batches": 1,
            "compile": "off", "doctor": True, "record_steps": [1], "sample_prompt": "", "save_steps": 1},
}  # fmt: skip
"""A valid document with values of every type."""


def toml(value: Any) -> str:
    """A value as TOML writes it; what TOML has no word for comes as JSON's, which is a mistake of its own."""
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), repr(value))
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(v)}" for key, v in value.items()) + "}"
    return json.dumps(value)


def as_toml(document: dict[str, Any]) -> str:
    lines = [f"{key} = {toml(value)}" for key, value in document.items() if not isinstance(value, dict)]
    for section, entries in document.items():
        if isinstance(entries, dict):
            lines += [f"[{section}]", *(f"{key} = {toml(value)}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def as_yaml(document: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(document)


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {"toml": as_toml, "json": json.dumps, "yaml": as_yaml}


def wish(good: Any, name: str, strange: str, value: Any) -> Expect:
    """Whether any user would want the value refused where a good one of this type stands."""
    if type(value) is type(good) or (isinstance(good, float) and isinstance(value, int) and value is not True):
        wrong_word = strange in ("word", "escape", "surrogate", "long", "digits") and name in CHOICES
        wrong_size = strange == "minus" and name not in ("seed", "frozen")
        no_number = strange == "nan" or (strange == "inf" and name != "max_grad_norm")
        return "refuse" if wrong_word or wrong_size or no_number else "any"
    if value is None or strange == "digits":
        return "any"
    if isinstance(good, bool):
        return "any" if strange == "zero" else "refuse"
    if isinstance(good, str):
        return "refuse" if name in CHOICES or strange in ("list", "object", "nested") else "any"
    if isinstance(good, list):
        return "refuse" if strange in ("half", "vast", "nan", "inf", "object") else "any"
    return "any" if strange in ("true", "empty") else "refuse"


CHOICES = {"norm", "optimizer", "schedule", "precision", "compile", "tokenizer"}

DOCUMENTS: list[tuple[str, str, str, Expect]] = [
    ("a section that does not exist", "toml", "[modle]\nd_model = 16\n", "refuse"),
    ("an option that does not exist", "toml", "[model]\nd_modle = 16\n", "refuse"),
    ("an option in the wrong section", "toml", "[model]\nlearning_rate = 0.1\n", "refuse"),
    ("an option in no section", "toml", "d_model = 16\n", "any"),
    ("an option given twice", "toml", "[model]\nd_model = 16\nd_model = 32\n", "refuse"),
    ("a section given twice", "toml", "[model]\nd_model = 16\n[model]\nnum_heads = 2\n", "refuse"),
    ("a section that is a number", "toml", "model = 3\n", "refuse"),
    ("a section that is a list", "toml", "[[model]]\nd_model = 16\n", "refuse"),
    ("a date", "toml", "[run]\nmax_steps = 2024-01-01\n", "refuse"),
    ("an integer beyond 64 bits", "toml", f"[run]\nseed = {2**80}\n", "any"),
    ("what cannot be parsed", "toml", "[model\nd_model = \n", "refuse"),
    ("JSON called TOML", "toml", json.dumps(BASE), "refuse"),
    ("control characters", "toml", "[model]\nnorm = \"\x1b[2J\"\n", "refuse"),
    ("a list", "json", "[1, 2]", "refuse"),
    ("a string", "json", '"model"', "refuse"),
    ("null", "json", "null", "any"),
    ("a section of null", "json", '{"model": null}', "any"),
    ("a section that is a list", "json", '{"model": [1]}', "refuse"),
    ("a section given twice", "json", '{"model": {"d_model": 16}, "model": {"d_model": 32}}', "any"),
    ("NaN", "json", '{"update": {"learning_rate": NaN}}', "refuse"),
    ("nested a hundred thousand deep", "json", '{"model": ' + "[" * 100_000 + "]" * 100_000 + "}", "refuse"),
    ("a number of ten thousand digits", "json", '{"run": {"max_steps": ' + "9" * 10_000 + "}}", "any"),
    ("a comma too many", "json", '{"model": {"d_model": 16,},}', "refuse"),
    ("comments", "json", '{// sizes\n"model": {"d_model": 16}}', "any"),
    ("TOML called JSON", "json", as_toml(BASE), "refuse"),
    ("a list", "yaml", "- model\n- data\n", "refuse"),
    ("a word", "yaml", "model\n", "refuse"),
    ("Python objects", "yaml", "model: !!python/object/apply:os.system ['touch owned']\n", "refuse"),
    ("an unknown tag", "yaml", "model: !sizes {d_model: 16}\n", "refuse"),
    ("tabs", "yaml", "model:\n\td_model: 16\n", "refuse"),
    ("no for a word", "yaml", "model: {norm: no}\n", "refuse"),
    ("an exponent that YAML reads as text", "yaml", "update: {learning_rate: 1e-3}\n", "any"),
    ("keys that are numbers", "yaml", "1: {2: 3}\n", "refuse"),
    ("a key that is a list", "yaml", "? [1, 2]\n: 3\n", "refuse"),
    ("an anchor within itself", "yaml", "model: &a {d_model: *a}\n", "refuse"),
    ("two documents", "yaml", "model: {d_model: 16}\n---\nmodel: {d_model: 32}\n", "refuse"),
    ("a billion laughs", "yaml", "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{k}: &a{k} [{','.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 10)), "refuse"),
    ("sexagesimal steps", "yaml", "run: {max_steps: 1:30}\n", "any"),
    ("an octal number", "yaml", "run: {seed: 010}\n", "any"),
]  # fmt: skip


def cases(rng: random.Random) -> Cases:
    found = Cases("configs")
    quick: tuple[str, ...] = (
        "--max-steps",
        "1",
        "--num-layers",
        "1",
        "--d-model",
        "16",
        "--num-heads",
        "2",
        "--context-length",
        "16",
    )
    quick += ("--batch-size", "2", "--threads", "1", "--eval-batches", "1", "--compile", "off", "--tokenizer", "bytes")
    for form in WRITERS:
        lay = (have("text.txt"), put(f"c.{form}", WRITERS[form](BASE)))
        found.add(f"{form}-plain", "as it should be", "train", "--config", f"c.{form}", lay=lay, expect="accept")
    for section, entries in BASE.items():
        for name, good in entries.items():
            for strange in rng.sample(sorted(STRANGE), 3):
                value, form = STRANGE[strange], rng.choice(sorted(WRITERS))
                expect = wish(good, name, strange, value)
                if name in ("max_steps", "eval_batches") and strange in ("huge", "inf", "vast"):
                    continue
                if form == "yaml" and strange == "surrogate":
                    form = "json"
                written = WRITERS[form](BASE | {section: entries | {name: value}})
                lay = (have("text.txt"), put(f"c.{form}", written.encode("utf-8", "surrogatepass")))
                sought = (name, name.replace("_", "-"), f"c.{form}", str(value)[:20])
                what = f"{section}.{name} is {strange}"
                found.add(f"{form}-{name}={strange}", what, "train", "--config", f"c.{form}", lay=lay, expect=expect,
                          names=sought)  # fmt: skip
    for what, form, text, expect in DOCUMENTS:
        lay = (have("text.txt"), put(f"c.{form}", text))
        argv = ("train", "text.txt", *quick, "--config", f"c.{form}")
        found.add(f"{form}-{what}", f"{form}: {what}", *argv, lay=lay, expect=expect)
        if rng.random() < 0.4 and form == "toml":
            found.add(f"plan-{what}", f"plan of a TOML: {what}", "plan", f"c.{form}", lay=lay, expect=expect)
    for form in WRITERS:
        for how in (*DISK, *rng.sample(SLIGHT, 3)):
            lay = (have("text.txt"), put(f"c.{form}", WRITERS[form](BASE)))
            hurt = change(f"c.{form}", damage(how, rng.randrange(99)))
            sure = how in ("folder", "loop", "dangling", "fifo", "sealed", "gone", "noise", "zeros", "prose", "endless")
            found.add(f"{form}-{how}", f"the file, {how}", "train", "text.txt", *quick, "--config", f"c.{form}",
                      lay=(*lay, hurt), expect="refuse" if sure else "any", names=(f"c.{form}",))  # fmt: skip
    for name in ("c", "c.ini", "c.txt", "c.TOML", "c.yml", "c.json.bak"):
        lay = (have("text.txt"), put(name, as_toml(BASE)))
        found.add(f"ending-{name}", f"TOML called {name}", "train", "--config", name, lay=lay, expect="any")
    return found
