"""Run folders with a file cut, flipped, emptied, replaced or exchanged, and recorded steps and compressed files too."""

import random
import shutil
from pathlib import Path

from benchmarks.robustness.bad.case import Cases, Expect, Step, change, have, put
from benchmarks.robustness.bad.damage import DISK, SLIGHT, STRANGE, damage, field, fill, header

READERS: dict[str, tuple[str, ...]] = {
    "trace": ("trace", "runs/a", "--step", "5"),
    "explain": ("explain", "runs/a", "blocks.0.attention.scores[0,1,5,3]"),
    "generate": ("generate", "runs/a", "the", "-n", "3"),
    "evaluate": ("evaluate", "runs/a", "other.txt"),
    "inspect": ("inspect", "runs/a", "--text", "the river runs over stone"),
    "compress": ("compress", "runs/a", "packed"),
    "compare": ("compare", "runs/a", "runs/a:plain"),
    "resume": ("train", "--resume", "runs/a", "--max-steps", "7"),
    "init": ("train", "text.txt", "--init-from", "runs/a", "--max-steps", "1", "--batch-size", "2"),
    "doctor": ("doctor", "runs/a"),
    "plan": ("plan", "runs/a"),
}
WEIGHTS = ("generate", "evaluate", "inspect", "compress", "compare", "resume", "init", "explain")
NEEDED: dict[str, tuple[str, ...]] = {
    "config.toml": ("trace", *WEIGHTS),
    "**/model.safetensors": WEIGHTS,
    "**/optimizer.safetensors": ("resume",),
    "**/state.json": ("resume",),
    "**/tokenizer.json": ("generate", "evaluate", "compress"),
    "metrics.jsonl": (),
    "micro_batches.jsonl": (),
    "findings.jsonl": (),
    "model/config.json": (),
    "checkpoints/000006/model.safetensors": (),
    "checkpoints/000006/state.json": (),
    "steps/000002.safetensors": (),
}
"""Files, and the verbs that cannot do without them."""
UNREADABLE = set(DISK) | {"other"}
LENIENT = {"half": ("config.toml",), "cut1": ("config.toml", "**/state.json", "**/tokenizer.json")}
"""What is left may be read after all."""


def other_runs(path: Path) -> None:
    """The same file of another run, of another size."""
    run = next(parent for parent in path.parents if parent.name == "a")
    relative = path.relative_to(run)
    theirs = run.with_name("b") / relative
    if not theirs.exists():
        theirs = next(run.with_name("b").rglob(relative.name))
    shutil.copy(theirs, path)


def _files(found: Cases, rng: random.Random) -> None:
    for file, needed in NEEDED.items():
        for verb, argv in READERS.items():
            ways = rng.sample([*DISK, *SLIGHT, "other"], 6 if verb in needed else 2)
            for how in ways:
                hurt = other_runs if how == "other" else damage(how, rng.randrange(999))
                lay: tuple[Step, ...] = (have("runs/a", "runs/b", "text.txt", "other.txt", "packed"),)
                lay = (*lay, change(f"runs/a/{file}", hurt))
                sure = verb in needed and how in UNREADABLE and file not in LENIENT.get(how, ())
                sure &= not (how == "other" and file in ("**/tokenizer.json", "**/state.json"))
                sure &= not (how == "empty" and file == "**/state.json" and verb != "resume")
                name = Path(file).name
                expect: Expect = "refuse" if sure else "any"
                writes = ("runs/a/*",) if verb == "resume" else ("runs/a/evaluate/*", "runs/a/inspect/*")
                found.add(f"{verb}-{file}-{how}", f"a run's {file}, {how}", *argv, lay=lay, expect=expect,
                          names=(name, "runs/a", "model"), writes=writes, stdin=b"")  # fmt: skip


def _fields(found: Cases, rng: random.Random) -> None:
    """The documents of a run with a field of nonsense."""
    places = [("**/state.json", verb) for verb in ("resume", "trace")]
    for path, verb in places:
        for strange in rng.sample(sorted(STRANGE), 6):

            def hurt(file: Path, value: object = STRANGE[strange]) -> None:
                import json

                document = json.loads(file.read_text())
                field(random.Random(0).choice(sorted(document)), value=value)(file)

            lay = (have("runs/a", "text.txt"), change(f"runs/a/{path}", hurt))
            found.add(f"{verb}-state={strange}", f"a field of state.json is {strange}", *READERS[verb], lay=lay,
                      expect="any", names=("state.json", "runs/a"), writes=("runs/a/*",))  # fmt: skip
    for name, value in (("d_model", 32), ("num_layers", 3), ("num_heads", 3), ("context_length", 0),
                        ("d_model", -16), ("num_heads", "x"), ("vocab_size", 10), ("tied", 7)):  # fmt: skip
        for verb in rng.sample(sorted(WEIGHTS), 2):

            def rewrite(file: Path, name: str = name, value: object = value) -> None:
                lines = file.read_text().splitlines()
                word = repr(value).replace("'", '"')
                file.write_text(
                    "\n".join(f"{name} = {word}" if l.startswith(f"{name} = ") else l for l in lines) + "\n"
                )

            sure = (name, value) != ("vocab_size", 10)
            lay = (have("runs/a", "text.txt", "other.txt", "packed"), change("runs/a/config.toml", rewrite))
            found.add(f"{verb}-config-{name}={value}", f"config.toml of a run says {name} = {value!r}", *READERS[verb],
                      lay=lay, expect="refuse" if sure else "any", writes=("runs/a/*",))  # fmt: skip


def _records(found: Cases, rng: random.Random) -> None:
    """Recorded steps: damaged, or saying what cannot be."""
    step = "runs/a/steps/000002.safetensors"
    for how in (*DISK, *SLIGHT, "flip", "flip"):
        lay = (have("runs/a"), change(step, damage(how, rng.randrange(999))))
        sure = how in DISK
        found.add(f"record-{how}", f"a recorded step, {how}", "trace", step, lay=lay,
                  expect="refuse" if sure else "any", names=("000002", "runs/a"))  # fmt: skip

    def metadata(strange: str) -> Step:
        import json

        def hurt(entries: dict[str, dict[str, str]]) -> None:
            document = json.loads(entries["__metadata__"]["limpid"])
            key = random.Random(strange).choice(sorted(document))
            document[key] = STRANGE[strange]
            entries["__metadata__"]["limpid"] = json.dumps(document)

        return change(step, header(hurt))

    for strange in rng.sample(sorted(STRANGE), 10):
        found.add(f"record-metadata={strange}", f"a field of the record is {strange}", "trace", step,
                  lay=(have("runs/a"), metadata(strange)), expect="any")  # fmt: skip
    edits = {
        "no metadata": lambda h: h.pop("__metadata__"),
        "metadata that is no JSON": lambda h: h["__metadata__"].update(limpid="{"),
        "no tokens": lambda h: h.pop("batch/tokens"),
        "no weights": lambda h: h.pop("before/embed.tokens.weight"),
        "tokens of floats": lambda h: h["batch/tokens"].update(dtype="F64"),
        "a gradient of another shape": lambda h: h["fast/loss"].update(shape=[1, 1, 1]),
    }
    for what, edit in edits.items():
        lay = (have("runs/a"), change(step, header(edit)))
        sure_edit: Expect = "any" if what.startswith("a gradient") else "refuse"
        found.add(f"record-{what}", f"a recorded step: {what}", "trace", step, lay=lay, expect=sure_edit)
    for value in (float("nan"), float("inf"), 1e38):
        for verb in ("generate", "evaluate", "compress", "inspect", "resume"):
            lay = (
                have("runs/a", "text.txt", "other.txt", "packed"),
                change("runs/a/**/model.safetensors", fill(value)),
            )
            found.add(f"{verb}-weights={value}", f"weights that are {value}", *READERS[verb], lay=lay, expect="any",
                      writes=("runs/a/*",))  # fmt: skip


def _compressed(found: Cases, rng: random.Random) -> None:
    argv = ("decompress", "packed.limpid", "-o", "out")

    def bytes_at(at: int, new: bytes) -> Step:
        def hurt(path: Path) -> None:
            old = path.read_bytes()
            start = at % len(old)
            path.write_bytes(old[:start] + new + old[start + len(new) :])

        return change("packed.limpid", hurt)

    base = have("runs/a", "runs/b", "packed.limpid")
    for how in (*DISK, *("flip",) * 8, "flip-head", "twice", "tail", "nul"):
        lay = (base, change("packed.limpid", damage(how, rng.randrange(999))))
        found.add(f"packed-{how}", f"a compressed file, {how}", *argv, lay=lay, names=("packed", "out", "runs"))
    for what, at, new in (
        ("version 2", 8, b"\x02"), ("weights in format 9", 9, b"\x09"), ("another model", 10, bytes(16)),
        ("other tables", 26, bytes(8)), ("a name longer than the file", 34, b"\xff"), ("no name", 34, b"\0"),
        ("a name of control characters", 35, b"\x1b"), ("another length at the end", -16, b"\xff" * 8),
        ("another hash at the end", -8, bytes(8)), ("a frame of kind 7", 36, b"\x07"),
        ("a frame of 4 GB", 37, b"\xff\xff\xff\xff"), ("a payload of 4 GB", 41, b"\xff\xff\xff\xff"),
    ):  # fmt: skip
        found.add(f"packed-{what}", f"a compressed file: {what}", *argv, lay=(base, bytes_at(at, new)))
    wrong = ("decompress", "packed.limpid", "-o", "out", "--model")
    for model in ("runs/b", "nothing", "packed.limpid"):
        found.add(
            f"packed-model-{model}",
            "not the model it was made with",
            *wrong,
            model,
            lay=(base,),
            names=(model, "model"),
        )
    found.add("packed-moved", "its model is gone", *argv, lay=(have("packed.limpid"),), names=("a", "model"))
    found.add("packed-onto", "onto a file that is there", "decompress", "packed.limpid", "-o", "mine",
              lay=(base, put("mine", "my own")), names=("mine",))  # fmt: skip
    found.add("packed-onto-damaged", "a damaged file onto one that is there, by force", *argv, "-f",
              lay=(base, put("out", "my own"), bytes_at(-1, b"\x55")), names=("packed",))  # fmt: skip


def cases(rng: random.Random) -> Cases:
    found = Cases("runs")
    _files(found, rng)
    _fields(found, rng)
    _records(found, rng)
    _compressed(found, rng)
    return found
