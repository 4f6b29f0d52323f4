"""Every option of every verb, read from its --help, with values of the wrong type, sign and size."""

import functools
import random
import re
import subprocess
import sys

from benchmarks.robustness.bad.case import Cases, Expect, Step, have
from benchmarks.robustness.bad.stock import train

VERBS: dict[str, tuple[tuple[str, ...], tuple[Step, ...]]] = {
    "train": (train(), (have("text.txt"),)),
    "trace": (("trace", "runs/a"), (have("runs/a", "text.txt"),)),
    "explain": (("explain", "runs/a", "blocks.0.attention.scores[0, 1, 5, 3]"), (have("runs/a", "text.txt"),)),
    "compare": (("compare", "runs/a", "runs/a:plain"), (have("runs/a", "text.txt"),)),
    "inspect": (("inspect", "runs/a"), (have("runs/a", "text.txt"),)),
    "evaluate": (("evaluate", "runs/a", "other.txt"), (have("runs/a", "other.txt"),)),
    "compress": (("compress", "runs/a", "packed"), (have("runs/a", "packed"),)),
    "decompress": (("decompress", "packed.limpid", "-f"), (have("runs/a", "packed.limpid"),)),
    "doctor": (("doctor", "runs/a"), (have("runs/a", "text.txt"),)),
    "equations": (("equations", "softmax"), ()),
    "plan": (("plan", "gpt2"), ()),
    "generate": (("generate", "runs/a", "the", "-n", "3"), (have("runs/a"),)),
    "chat": (("chat", "runs/a", "-n", "3"), (have("runs/a"),)),
}
WORDS = {
    "tokenizer",
    "norm",
    "norm-placement",
    "positions",
    "rotary-layout",
    "rotary-scaling",
    "mlp",
    "activation",
    "optimizer",
    "schedule",
    "precision",
    "report-to",
    "compile",
    "gradient-checkpointing",
    "recipe",
    "convention",
    "weights",
    "branch",
    "stage",
    "recompute",
    "attention",
    "device",
    "why",
    "explain",
    "quantity",
    "config",
    "resume",
    "init-from",
    "against",
    "model",
    "tasks",
}
"""Options whose words are from a list, or name something that exists."""
SIGNED = {"seed", "position", "step", "length-penalty", "schedule-power"}
NEEDS_ONE = {
    "context-length",
    "d-model",
    "num-layers",
    "num-heads",
    "num-kv-heads",
    "d-head",
    "d-ff",
    "attention-window",
    "batch-size",
    "max-steps",
    "devices",
    "gradient-accumulation-steps",
    "schedule-cycles",
    "tensor",
    "pipeline",
    "num-beams",
    "context",
    "stride",
    "minutes",
    "tokens",
    "params",
    "compute",
    "memory",
    "flops",
    "repetition-penalty",
    "utilisation",
}
"""Zero makes no sense for these."""
SHARES = {
    "dropout",
    "beta1",
    "beta2",
    "validation-fraction",
    "top-p",
    "min-p",
    "confidence",
    "utilisation",
    "decay-fraction",
}
"""More than 1 makes no sense for these."""
FINITE = SHARES | {
    "learning-rate",
    "eps",
    "weight-decay",
    "norm-eps",
    "init-std",
    "rotary-base",
    "rotary-factor",
    "tokens",
    "params",
    "compute",
    "price",
    "length-penalty",
    "min-learning-rate-ratio",
}
"""Infinity makes no sense for these."""
TOO_LARGE = {"context-length", "d-model", "num-layers", "num-heads", "d-ff", "vocab-size", "batch-size"}
"""Of 10¹⁵ of these no machine holds the model or its batch."""
ENDLESS = {"max-steps", "gradient-accumulation-steps", "eval-batches", "max-new-tokens", "minutes", "sample-steps"}
"""A large number of these only takes long."""
SKIPPED = {"landscape", "measure", "worked", "explain-engine"}
"""They take long or open something else; the other kinds have them."""

Value = tuple[str, Expect]


@functools.cache
def options(verb: str) -> list[tuple[str, str]]:
    """Long names and kinds of values of a verb's options."""
    shown = subprocess.run([sys.executable, "-m", "limpid", verb, "--help"], capture_output=True, text=True).stdout
    found = re.findall(r"^  (?:-\w[^,\n]*, )?--([a-z0-9-]+) (WORD|N|X|A,B,…|yes\|no)", shown, re.MULTILINE)
    return [(name, kind) for name, kind in found if name not in SKIPPED]


def values(name: str, kind: str) -> list[Value]:
    """Values for an option, and whether any user would want them refused."""
    if kind == "yes|no":
        return [
            ("maybe", "refuse"),
            ("", "refuse"),
            ("2", "any"),
            ("-1", "refuse"),
            ("yesno", "refuse"),
            ("YES", "any"),
        ]
    if kind == "WORD":
        known: Expect = "refuse" if name in WORDS else "any"
        strange = ["no-such-word", "\u202eword", "x" * 5000, "ＡＤＡＭ", "/dev/null/x", "'; ls", "%s%n{0}"]
        return [("", known), ("none\n", "any"), *((word, known) for word in strange)]
    if kind == "A,B,…":
        return [
            ("1,,2", "any"), ("a", "refuse"), ("-1", "refuse"), ("1.5", "refuse"), ("nan", "refuse"), ("1;2", "refuse"),
            ("[1", "refuse"), ("99999999999999999999", "refuse"), (",", "any"), ("0x1", "any"),
        ]  # fmt: skip
    found: list[Value] = [("ten", "refuse"), ("", "refuse"), ("nan", "refuse"), ("1,5", "refuse"), ("--5", "refuse")]
    found += [("1..2", "refuse"), ("٣", "any"), ("1_0", "any"), ("½", "refuse"), ("1e", "refuse"), ("None", "any")]
    found += [("1+1", "refuse"), ("True", "any"), ("1\x1b[2J", "refuse"), ("0b1", "any"), ("1j", "refuse")]
    found.append(("-1", "any" if name in SIGNED else "refuse"))
    found.append(("0", "refuse" if name in NEEDS_ONE else "any"))
    found.append(("-99999999999999999999", "any" if name in SIGNED else "refuse"))
    if kind == "N":
        found += [("1.5", "refuse"), ("inf", "refuse"), ("1e-9", "refuse")]
        if name not in ENDLESS:
            found.append((str(10**15), "refuse" if name in TOO_LARGE else "any"))
            found.append(("9" * 400, "refuse" if name in TOO_LARGE else "any"))
            found.append(("9" * 5000, "refuse" if name in TOO_LARGE else "any"))
    else:
        found += [("-1e-300", "any" if name in SIGNED else "refuse"), ("5e-324", "any")]
        if name not in ENDLESS:
            found += [("inf", "refuse" if name in FINITE else "any"), ("-inf", "refuse"), ("1e308", "any")]
            found.append(("1e999", "refuse" if name in FINITE else "any"))
            found.append(("1.5", "refuse" if name in SHARES else "any"))
    return [value for value in found if value[1] == "refuse"] if name in ENDLESS else found


def command(verb: str, name: str, kind: str, value: str) -> tuple[str, ...]:
    """The verb's smallest command with the option; one that stands there already is replaced.

    What may stand without a value takes one only after an equals sign.
    """
    argv = list(VERBS[verb][0])
    flag = {"max-new-tokens": "-n"}.get(name, f"--{name}")
    if flag in argv:
        argv[argv.index(flag) + 1] = value  # it has one there
        return tuple(argv)
    return (*argv, f"--{name}={value}") if kind == "yes|no" else (*argv, f"--{name}", value)


def malformed(cases: Cases) -> None:
    """Options that do not exist, have no value, stand where none may, or come twice."""
    for verb, (argv, lay) in VERBS.items():
        cases.add(f"{verb}-unknown", "an option that does not exist", *argv, "--no-such-option", "1", lay=lay)
        cases.add(f"{verb}-short", "a letter that does not exist", *argv, "-Z", lay=lay, names=("-Z",))
        cases.add(f"{verb}-dashes", "three dashes", *argv, "---json", lay=lay, names=("-json",))
        name = options(verb)[-1][0]
        cases.add(f"{verb}-no-value", "an option without its value", *argv, f"--{name}=", lay=lay, expect="any")
        cases.add(f"{verb}-plain", "the command as it should be", *argv, lay=lay, expect="accept", stdin=b"hi\n")
        if verb in ("trace", "inspect", "doctor", "plan", "compress", "decompress", "chat"):
            extra = ("other.txt", "x", "y")
            cases.add(f"{verb}-too-many", "names that nothing takes", *argv, *extra, lay=lay, names=(*extra, "takes"))
    for words in ([], ["trian"], ["--version"], [""], ["-"], ["train\x1b[2J"], ["--"], ["TRAIN"], ["help", "nope"]):
        cases.add(f"verb-{'-'.join(words)}", "no verb, or none that exists", *words, expect="any")


def cases(rng: random.Random) -> Cases:
    """All of them; the caller draws."""
    found = Cases("options")
    malformed(found)
    for verb, (_, lay) in VERBS.items():
        for name, kind in options(verb):
            for value, expect in rng.sample(values(name, kind), 4):
                label = f"{verb}-{name}={value[:12]}"
                writes = ("other.txt", "*") if name in ("output",) else ()
                sought = (name, name.replace("-", "_"), value[:20] or "''", repr(value)[1:15])
                argv = command(verb, name, kind, value)
                found.add(label, f"--{name} takes {kind}", *argv, lay=lay, expect=expect, names=sought, writes=writes,
                          stdin=b"hello\n")  # fmt: skip
    return found
