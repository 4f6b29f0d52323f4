"""Random Hugging Face folders: does limpid read what it says it reads, as transformers does, and refuse others?

python -m benchmarks.robustness.folders --count 200 --others 200 --json FILE [--only NAME] [--resume] [--keep FOLDER]

Of each folder that limpid says it reads, made by transformers with random sizes, biases, rotary scaling, windows,
number formats, shards and tokenizers:

    logits    limpid.load(FOLDER) gives transformers' logits
    tokens    and its tokens
    generate  greedy tokens are those that transformers would take too (or as likely up to rounding)
    trace     `limpid trace FOLDER --text` or `limpid compare FOLDER FOLDER:plain` finds nothing wrong
    written   after a step at a learning rate of 1e-12 the run's model/ loads in transformers, with the same logits

The yardstick is transformers' own: with e the largest difference of its float32 logits from its float64 logits,
limpid's float32 logits may differ from the latter by 20 e + 5e-6 of the largest logit. Tokens are those of
tokenizer.json as the tokenizers library reads it: transformers' classes of some families put a pattern of their own in
its place. A folder with an odd part (written down beforehand) may be refused in one line; none may be read wrongly.
Folders of other families have to be refused in one line by the verbs that need weights.
"""

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.robustness.bad import families
from benchmarks.robustness.bad.case import Case, judge
from benchmarks.robustness.bad.families import Folder
from benchmarks.robustness.bad.records import WRONG, Book, Record, options, run_all, summary
from benchmarks.robustness.bad.sandbox import Outcome, aside, isolate, limpid, run, warm
from benchmarks.robustness.bad.stock import prose

TEXTS = ("The river runs over stone", "naïve cafés — 42 birds!", " two  spaces\nand a line", "")
PROMPT = "The river runs"
SECONDS = 60  # of processor time for each part
STEP = {
    "max-steps": "1", "batch-size": "2", "learning-rate": "1e-12", "warmup-steps": "0", "eval-steps": "0",
    "precision": "fp32", "threads": "1", "compile": "off", "name": "out",
}  # fmt: skip
"""A training that leaves the weights as they are."""

Stage = tuple[str, str]
"""Category and what was seen."""


def theirs(place: Path, tokens: Any, double: bool) -> Any:
    """transformers' logits in float32 or float64."""
    import torch
    import transformers as tf

    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    model = tf.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return (model.double() if double else model)(tokens).logits.double()


def ours(place: Path, tokens: Any) -> Any:
    """limpid's logits."""
    import torch

    import limpid as package

    model, _ = package.load(place)
    with torch.no_grad():
        return model.eval().float()(tokens).double()


def sample(place: Path) -> Any:
    """Random tokens that fill the context."""
    import torch

    config = json.loads((place / "config.json").read_text())
    context = config.get("max_position_embeddings") or config.get("n_positions") or 40
    torch.manual_seed(0)
    return torch.randint(config["vocab_size"], (2, min(context, 40)))


def nearness(truth: Any, rough: Any, mine: Any) -> tuple[bool, str]:
    """Whether logits are as near to the truth as float32 lets them be."""
    allowed = float(20 * (rough - truth).abs().max() + 5e-6 * truth.abs().max())
    apart = float((mine - truth).abs().max()) if mine.shape == truth.shape else float("inf")
    return apart <= allowed, f"apart {apart:.2g} of {allowed:.2g} allowed, logits to {float(truth.abs().max()):.2g}"


def say(found: Stage) -> None:
    print("RESULT " + json.dumps(found))


def compare_logits(place: Path) -> Callable[[], None]:
    """limpid's logits beside transformers', in a forked process."""

    def command() -> None:
        tokens = sample(place)
        mine = complain(lambda: ours(place, tokens))
        good, seen = nearness(theirs(place, tokens, True), theirs(place, tokens, False), mine)
        say(("same" if good else "different", seen))

    return command


def complain(work: Callable[[], Any]) -> Any:
    """Call limpid; what it refuses ends the process as a command does."""
    from limpid.errors import LimpidError

    try:
        return work()
    except LimpidError as problem:
        print(f"limpid: error: {problem}", file=sys.stderr)
        raise SystemExit(2) from None


def compare_tokens(place: Path) -> Callable[[], None]:
    """limpid's tokens beside transformers', with and without the start token."""

    def command() -> None:
        import limpid as package

        _, mine = complain(lambda: package.load(place))
        for text in TEXTS:
            got = [int(token) for token in mine.encode(text)]
            wanted = [encoded(place, text, special) for special in (True, False)]
            if got not in wanted:
                return say(("different", f"tokens of {text!r}: {got}, in tokenizer.json {wanted[0]}"))
        return say(("same", f"{len(TEXTS)} texts"))

    return command


def encoded(place: Path, text: str, special: bool = True) -> list[int]:
    """Tokens by tokenizer.json alone."""
    import tokenizers

    return list(
        tokenizers.Tokenizer.from_file(str(place / "tokenizer.json")).encode(text, add_special_tokens=special).ids
    )


def compare_choices(place: Path, chosen: list[int]) -> Callable[[], None]:
    """Whether transformers, led along limpid's tokens, would choose each too, or one as likely up to rounding."""

    def command() -> None:
        import torch

        worst = []
        for special in (True, False):
            prompt = encoded(place, PROMPT, special)
            logits = theirs(place, torch.tensor([prompt + chosen]), True)[0, len(prompt) - 1 : -1]
            gaps = logits.max(-1).values - logits[torch.arange(len(chosen)), torch.tensor(chosen)]
            worst.append(float(gaps.max() / logits.abs().max()) if chosen else 0.0)
        good = min(worst) <= 1e-4
        say(("same" if good else "different", f"{len(chosen)} greedy tokens, worst short of the best {min(worst):.2g}"))

    return command


def compare_written(place: Path, out: Path) -> Callable[[], None]:
    """The written model in transformers, in limpid, and the folder that it came from."""

    def command() -> None:
        import transformers as tf

        tokens = sample(place)[:, : sample(out / "model").shape[1]]
        truth, rough = theirs(place, tokens, True), theirs(place, tokens, False)
        for name, mine in (
            ("model/ in transformers", theirs(out / "model", tokens, False)),
            ("the run in limpid", complain(lambda: ours(out, tokens))),
        ):
            good, seen = nearness(truth, rough, mine)
            if not good:
                return say(("different", f"{name} after a step of 1e-12: {seen}"))
        old, new = (tf.AutoTokenizer.from_pretrained(folder) for folder in (place, out / "model"))
        for text in TEXTS:
            before = [encoded(place, text), old(text).input_ids]
            if new(text).input_ids not in before:
                return say(("different", f"tokens of {text!r}: {new(text).input_ids}, before {before[0]}"))
        return say(("same", seen))

    return command


def judged(folder: Folder, outcome: Outcome, argv: tuple[str, ...]) -> Stage:
    """What came of a part: a comparison's result, or a refusal or worse."""
    for line in outcome.stdout.splitlines():
        if line.startswith("RESULT ") and outcome.code == 0:
            category, seen = json.loads(line[7:])
            return category, seen
    case = Case(folder.name, "", argv, expect="accept" if folder.known and not folder.odd else "any")
    category, seen = judge(case, outcome, [])
    return ("different" if category == "verdict" else category), seen


def check_readable(folder: Folder, place: Path, work: Path) -> dict[str, Stage]:
    """All parts; after a refusal the rest has to be refused too, so only the first is kept."""
    found: dict[str, Stage] = {}

    def part(name: str, command: Callable[[], None], argv: tuple[str, ...] = ()) -> Outcome:
        outcome = run(command, work, cpu_seconds=SECONDS)
        found[name] = judged(folder, outcome, argv)
        return outcome

    part("logits", compare_logits(place))
    if found["logits"][0] in ("clear", "overcautious"):
        refused = ("generate", str(place), PROMPT, "-n", "4")
        found["generate"] = judged(folder, run(limpid(refused), work, cpu_seconds=SECONDS), refused)
        return found
    part("tokens", compare_tokens(place))
    argv: tuple[str, ...] = ("generate", str(place), PROMPT, "-n", "8", "-t", "0", "--weights", "fp32", "--json")
    outcome = part("generate", limpid(argv), argv)
    if outcome.code == 0:
        part("generate", compare_choices(place, json.loads(outcome.stdout)["tokens"]))
    which = random.Random(folder.seed).choice(["trace", "compare"])
    argv = ("trace", str(place), "--text", TEXTS[0]) if which == "trace" else ("compare", str(place), f"{place}:plain")
    part(which, limpid(argv), argv)
    (work / "text.txt").write_text(prose(folder.seed, 150))
    argv = ("train", "text.txt", "--init-from", str(place), *(word for k, v in STEP.items() for word in (f"--{k}", v)))
    if part("train", limpid(argv), argv).code == 0:
        out = Path("out" if (work / "out").exists() else "runs/out")
        part("written", compare_written(place, out))
    return found


def check_other(folder: Folder, place: Path, work: Path) -> dict[str, Stage]:
    """Three of the verbs that need weights, and Python."""
    (work / "text.txt").write_text(prose(0, 60))
    name = str(place)
    commands: dict[str, tuple[str, ...]] = {
        "generate": ("generate", name, PROMPT), "trace": ("trace", name, "--text", PROMPT),
        "evaluate": ("evaluate", name, "text.txt"), "compare": ("compare", name, f"{name}:plain"),
        "train": ("train", "text.txt", "--init-from", name, "--max-steps", "1"),
        "inspect": ("inspect", name, "--text", PROMPT), "compress": ("compress", name, "text.txt"),
    }  # fmt: skip
    found = {}
    model_type = json.loads((work / place / "config.json").read_text())["model_type"]
    for verb in random.Random(folder.seed).sample(sorted(commands), 3):
        case = Case(folder.name, "", commands[verb], expect="refuse", names=(model_type,))
        outcome = run(limpid(case.argv), work, cpu_seconds=SECONDS)
        found[verb] = judge(case, outcome, [])
    outcome = run(lambda: complain(lambda: ours(place, sample(place))), work, cpu_seconds=SECONDS)
    found["load"] = judge(Case(folder.name, "", expect="refuse", names=(model_type,)), outcome, [])
    planned = ("plan", name)
    found["plan"] = judge(Case(folder.name, "", planned, expect="any"), run(limpid(planned), work), [])
    return found


def check(folder: Folder, room: Path, keep: Path | None) -> Record:
    """Make a folder, check it, and say the worst of it."""
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="folder-", dir=room))
    place = Path(folder.name)  # relative, as commands are run in the folder above it
    try:
        try:
            aside(lambda: families.make(folder, work / place))
        except SystemExit as problem:
            return Record(folder.name, folder.kind, folder.done, "", f"not made: {problem}", 0.0, "not made")
        found = (check_readable if folder.known else check_other)(folder, place, work)
        bad = [stage for stage in found.values() if stage[0] in WRONG]
        refused = "clear" in [stage[0] for stage in found.values()]
        category = bad[0][0] if bad else "clear" if refused else "same"
        got = "; ".join(f"{name}: {stage[0]} ({stage[1]})" for name, stage in found.items() if not bad or stage in bad)
        expected = "refused in one line" if not folder.known else "the same"
        expected += f", or refused for {folder.odd}" if folder.odd else ""
        if keep is not None and bad:
            shutil.copytree(work / place, keep / folder.name, dirs_exist_ok=True)
        seconds = round(time.monotonic() - began, 1)
        return Record(folder.name, folder.kind, folder.done, expected, got, seconds, category)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def prepare() -> None:
    """Import what transformers would import in each process anew."""
    import transformers as tf

    for begins in families.READABLE.values():
        getattr(tf, "GPT2LMHeadModel" if begins == "GPT2" else f"{begins}ForCausalLM")
    for name in ("AutoModelForCausalLM", "AutoTokenizer", "PreTrainedTokenizerFast"):
        getattr(tf, name)


def main() -> None:
    parser = options("Random Hugging Face folders, read and written.", 200)
    parser.add_argument("--others", type=int, help="folders of other families [as many]")
    parser.add_argument("--keep", type=Path, help="keep the folders where something is wrong here")
    parser.add_argument("--list", action="store_true", help="print the folders and make none")
    given = parser.parse_args()
    began = time.time()
    folders = families.draw(given.count, given.count if given.others is None else given.others, given.seed)
    folders = [folder for folder in folders if (given.only or "") in folder.name]
    if given.list:
        for folder in folders:
            print(f"{folder.name}  {folder.odd or '-'}  {folder.done}")
        return
    with tempfile.TemporaryDirectory(prefix="robustness-") as room:
        isolate(Path(room))
        warm()
        prepare()
        book = Book(given.json, given.resume)
        run_all(folders, lambda folder: check(folder, Path(room), given.keep), book, given.jobs)
        names = {folder.name for folder in folders}
        print(summary([record for record in book.records.values() if record.name in names], began))


if __name__ == "__main__":
    main()
