"""The command line: each verb loads only its own room, so that help is quick."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config import TrainConfig, WeightFormat
from limpid.errors import ConfigError, LimpidError
from limpid.options import check_words, from_dict
from limpid.verbs import (
    ChatFlags,
    CompareFlags,
    CompressFlags,
    DecompressFlags,
    DoctorFlags,
    EquationsFlags,
    EvaluateFlags,
    ExplainFlags,
    GenerateFlags,
    InspectFlags,
    TraceFlags,
    TrainFlags,
)

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Decoder
    from limpid.training.begin import Training
    from limpid.training.until import Until

HELP = """usage: limpid VERB [what] [options]

Train transformer language models, and open any training step.

  train [PATH …]          train a model on text; with no path, on Python's own library
  trace RUN               open one step of a run: redo it in float64, compare, tell it as a story
  explain RUN ENTRY       one number of a step: how it was made, its gradient, its update
  inspect MODEL           who wrote the logit, lens, attention, spectra; curvature with --landscape
  compare A B             rounding or bug? two ways to the same numbers, within computed bounds
  evaluate MODEL [TEXT …] loss, bits per byte, calibration with intervals; --against OTHER, --tasks FILE
  doctor RUN              what is wrong with a run, ours or another tool's log: cause, number, what to change
  equations [WORD …]      every equation here: source, gradient, code; measured when asked
  plan [WHAT]             parameters, FLOPs, memory, time, money, scaling laws; plan fit RUNS, plan sweep
  generate RUN PROMPT     continue a prompt
  compress MODEL FILE     any file in as many bits as the model is surprised by it; decompress FILE gives it back
  chat RUN                talk to a model

RUN is a run's folder, its name under runs/, or `last`; most verbs take a Hugging Face folder too.
`limpid VERB --help` lists a verb's options. Exit code: 0 fine, 1 a check failed or training broke off, 2 wrong use.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if words[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"limpid {version('limpid')}")
        return 0
    try:
        if words[0] not in VERBS:
            raise ConfigError(f"unknown verb {words[0]!r}: choose one of {', '.join(VERBS)}")
        return VERBS[words[0]](words[1:])
    except LimpidError as error:
        print(f"limpid: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def train(argv: Sequence[str]) -> int:
    from limpid.flags import given
    from limpid.recipes import TIMED, recipe
    from limpid.run import find_run, read_options

    typed = given("train", TrainFlags, argv)
    began = time.perf_counter()
    words = ("config", "recipe", "minutes", "name", "resume")
    file, chosen, minutes, name, resumed = (typed.pop(key, None) for key in words)
    if resumed is not None:
        max_steps = typed.get("run", {}).pop("max_steps", None)
        others = [option for section in typed.values() for option in section] + [
            word for word, value in zip(words, (file, chosen, minutes, name), strict=False) if value is not None
        ]
        if others:
            raise ConfigError(
                f"--resume continues a run as it was configured: leave out --{others[0].replace('_', '-')} "
                "(only --max-steps may change)"
            )
        return _train(lambda console, progress: _resumed(find_run(resumed), max_steps, console))
    base = {} if chosen is None and minutes is None else recipe(chosen or "fast")
    base = base if minutes is None else _merged(base, TIMED)
    options = typed if file is None else _merged(read_options(Path(file)), typed)
    config = from_dict(TrainConfig, _merged(base, options))
    until = None if minutes is None else _until(began, minutes, options)
    from limpid.training.begin import start

    return _train(lambda console, progress: start(config, name, console, progress, until))


def _until(began: float, minutes: float, options: dict[str, Any]) -> Until:
    """When a run of so many minutes ends, and whether the options name its size."""
    from limpid.training.until import Until

    if not minutes > 0:
        raise ConfigError(f"minutes is {minutes}: it must be above 0")
    if "max_steps" in options.get("run", {}):
        raise ConfigError("--minutes counts the steps itself: leave out --max-steps")
    sizes = {"d_model", "num_layers", "num_heads", "num_kv_heads", "d_head", "d_ff"}
    sized = bool(sizes & set(options.get("model", {}))) or "init_from" in options.get("run", {})
    return Until(began + 60 * minutes, sized)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Both tables, section by section; `over` wins."""
    return {
        key: {**base[key], **over[key]} if key in base and key in over else over.get(key, base.get(key))
        for key in {**base, **over}
    }


def _resumed(run: Any, max_steps: int | None, console: Any) -> Training:
    from limpid.training.begin import resume

    return resume(run, max_steps, console)


def _train(begin: Callable[..., Training]) -> int:
    """Begin, train to the end, and say where everything lies and what to type next."""
    from rich.console import Console

    from limpid.diagnose import attend
    from limpid.generate import continue_text
    from limpid.memory import keep_freed_memory
    from limpid.progress import progress
    from limpid.training.begin import describe
    from limpid.training.loop import Diverged, Interrupted, finish, loop, sample

    keep_freed_memory()
    console = Console(soft_wrap=True, highlight=False)
    with progress(console) as report:
        training = begin(console, report)
    run = training.run.path
    for line in describe(training):
        console.print(line, markup=False)
    doctor = attend(training, lambda line: console.print(line, markup=False))
    try:
        loop(training, console, continue_text, doctor)
    except Interrupted:
        console.print(f"stopped after step {training.state.step}, everything saved; go on with", markup=False)
        console.print(f"  limpid train --resume {run}", markup=False)
        return 130
    except Diverged as broken:
        console.print(f"{broken}; open it with", markup=False)
        console.print(f"  limpid trace {run} --step {broken.step}", markup=False)
        return 1
    finally:
        if doctor is not None:
            doctor.close()
    console.print(sample(training, continue_text), markup=False)
    why_not = finish(training)
    console.print(f"\n{run}/", markup=False)
    for what, where in _contents(why_not):
        console.print(f"  {what:<24}{where}", markup=False)
    console.print("\nnext", markup=False)
    for command, what in (
        (f"limpid trace {run}", "open the last step"),
        (f'limpid generate {run} "def "', "continue a prompt"),
        (f"limpid train --resume {run} --max-steps {2 * training.config.run.max_steps}", "train on"),
    ):
        console.print(f"  {command:<60}{what}", markup=False)
    return 0


def _contents(why_not: str | None) -> list[tuple[str, str]]:
    model = (
        "loads in transformers: AutoModelForCausalLM.from_pretrained" if why_not is None else f"not written: {why_not}"
    )
    return [
        ("model/", model),
        ("checkpoints/", "what --resume and trace start from"),
        ("metrics.jsonl", "one line per step"),
        ("ledger.jsonl", "one line per micro-batch: its rows, tokens, labels, loss"),
        ("findings.jsonl", "what the doctor found; empty is good"),
        ("config.toml", "every option, resolved"),
    ]


def trace(argv: Sequence[str]) -> int:
    from rich.console import Console

    from limpid.flags import given

    typed = given("trace", TraceFlags, argv)
    flags = from_dict(TraceFlags, typed)
    if flags.worked:
        return worked(flags)
    from limpid.memory import keep_freed_memory
    from limpid.trace import open_step

    keep_freed_memory()
    console = Console(highlight=False)
    record = recorded(flags.what, flags.step, flags.text, flags.output)
    return open_step(record, quantity=flags.quantity, as_json=flags.json, everything=flags.everything, console=console)


def worked(flags: TraceFlags) -> int:
    from limpid.trace.worked import worked_step

    if flags.json:
        import json

        from limpid.trace.worked_story import document

        print(json.dumps(document(worked_step())))
        return 0
    from rich.console import Console

    from limpid.trace.worked_story import tell

    tell(worked_step(), Console(highlight=False), flags.everything)
    return 0


def explain(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(ExplainFlags, given("explain", ExplainFlags, argv))
    *before, entry = flags.words or ("",)
    if len(before) > 1 or not entry or (flags.worked and (before or flags.step)):
        raise ConfigError("explain takes a run and an entry, as in: limpid explain last 'logits[0, 0, 7]'")
    from rich.console import Console

    from limpid.trace import explain_entry

    record = None if flags.worked else recorded(before[0] if before else "last", flags.step, None)
    return explain_entry(record, entry, as_json=flags.json, console=Console(highlight=False))


def compare(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(CompareFlags, given("compare", CompareFlags, argv))
    if len(flags.words) != 2:
        raise ConfigError("compare takes two ways, as in: limpid compare last last:transformers")
    from rich.console import Console

    from limpid.compare import compare_ways

    first, second = flags.words
    return compare_ways(
        first, second, text=flags.text, backward=flags.backward, as_json=flags.json, console=Console(highlight=False)
    )


def inspect(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(InspectFlags, given("inspect", InspectFlags, argv))
    from rich.console import Console

    from limpid.inspect import inspect_model
    from limpid.run import RUNS, find_run

    if flags.output is not None:
        output = Path(flags.output)
    elif (Path(flags.what) / "config.json").is_file():
        output = RUNS / f"{Path(flags.what).resolve().name}-inspect"
    else:
        output = find_run(flags.what).path / "inspect"
    return inspect_model(
        flags.what,
        text=flags.text,
        position=flags.position,
        token=flags.token,
        word=flags.word,
        output=output,
        landscape=flags.landscape,
        as_json=flags.json,
        console=Console(highlight=False),
    )


def doctor(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(DoctorFlags, given("doctor", DoctorFlags, argv))
    if flags.preflight and flags.explain is not None:
        raise ConfigError("--explain tells a rule, --preflight examines a run: leave one out")
    from rich.console import Console

    from limpid import diagnose

    console = Console(highlight=False, soft_wrap=flags.explain is None)
    if flags.explain is not None:
        return diagnose.explain(flags.explain, as_json=flags.json, console=console)
    verb = diagnose.preflight if flags.preflight else diagnose.examine
    return verb(flags.what, as_json=flags.json, console=console)


def equations(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(EquationsFlags, given("equations", EquationsFlags, argv))
    from limpid.equations.catalogue import chosen
    from limpid.equations.errata import errata

    filtered = flags.words or flags.branch or flags.stage or flags.paper
    found = () if flags.errata and not filtered else chosen(flags.words, flags.branch, flags.stage, flags.paper)
    corrections = errata() if flags.errata else ()
    if flags.json:
        import json

        from limpid.equations.show import document

        print(json.dumps(document(found, flags.measure, corrections), ensure_ascii=False))
        return 0
    from rich.console import Console

    from limpid.equations.show import tell

    return 0 if tell(found, flags.measure, corrections, Console(highlight=False)) else 1


def plan(argv: Sequence[str]) -> int:
    if argv and argv[0] == "sweep":
        from limpid.sweep import sweep_verb

        return sweep_verb(argv[1:])
    from limpid.plan.verb import plan_verb

    def here(precision: str) -> float:
        """FLOP/s of a large matrix product on this machine."""
        from limpid.training.precision import FORMATS, measured_peak

        return measured_peak(FORMATS[{"bf16_pure": "bf16"}.get(precision, precision)])

    def engine(config: TrainConfig) -> list[tuple[str, str, str]]:
        """How training would be computed here: what about, what was chosen, why."""
        from limpid.training.engine import explain

        return [(choice.part, choice.chosen, choice.why) for choice in explain(config)]

    return plan_verb(argv, here, engine)


def evaluate(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(EvaluateFlags, given("evaluate", EvaluateFlags, argv))
    from rich.console import Console

    from limpid.evaluate import evaluate_model
    from limpid.evaluate.evaluation import Asked

    asked = Asked(
        flags.context, flags.stride, flags.convention, flags.max_tokens, flags.confidence, flags.seed, flags.text_field
    )
    return evaluate_model(
        flags.what,
        flags.paths,
        against=flags.against,
        tasks=flags.tasks,
        asked=asked,
        output=None if flags.output is None else Path(flags.output),
        as_json=flags.json,
        console=Console(highlight=False),
    )


def compress(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(CompressFlags, given("compress", CompressFlags, argv))
    check_words(flags)
    from limpid.compress.verbs import compress_file

    return compress_file(
        flags.what, flags.file, flags.output, weights=flags.weights, force=flags.force, as_json=flags.json
    )


def decompress(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(DecompressFlags, given("decompress", DecompressFlags, argv))
    from limpid.compress.verbs import decompress_file

    return decompress_file(flags.file, flags.model, flags.output, force=flags.force, as_json=flags.json)


def recorded(what: str, step: int | None, text: str | None, output: str | None = None) -> Path:
    """The file of the step asked for, recorded now if it was not before."""
    from limpid.run import find_run

    path = Path(what)
    if path.is_file():
        if step is not None or text is not None:
            raise ConfigError(f"{path} is one recorded step: leave out {'--step' if text is None else '--text'}")
        return path
    if text is not None:
        if step is not None:
            raise ConfigError("--text takes a step of its own on that text: leave out --step")
        from limpid.training.reopen import record_text

        return record_text(path, text, None if output is None else Path(output))
    if (path / "config.json").is_file() and not (path / "config.toml").is_file():
        raise ConfigError(f'{path} is a model, which has taken no steps: give a text, as in --text "To be or not"')
    run = find_run(what)
    number = run.read_config().run.max_steps if step is None else step
    if step is None:
        steps = run.checkpoint_steps()
        number = min(number, steps[-1]) if steps and steps[-1] else number
    if number >= 1 and run.recorded_step(number).is_file():
        return run.recorded_step(number)
    from limpid.training.reopen import record_past

    return record_past(run, number)


def decoder(what: str, weights: WeightFormat = "auto") -> tuple[Decoder, Tokenizer]:
    """A model ready to decode, and its tokenizer; a spinner tells that the first call on a machine compiles."""
    from rich.console import Console

    from limpid.generate import open_model
    from limpid.model import Decoder

    model, tokenizer = open_model(what)
    with Console(stderr=True).status("preparing to decode (compiled once per machine, some seconds)"):
        return Decoder(model, weights), tokenizer


def generate(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(GenerateFlags, given("generate", GenerateFlags, argv))
    import json

    from limpid.generate import generate as complete
    from limpid.generate import stream

    model, tokenizer = decoder(flags.what, flags.weights)
    prompts = flags.prompts or ("",)
    if flags.json:
        for prompt, made in zip(prompts, complete(model, tokenizer, prompts, flags.sampling), strict=True):
            print(json.dumps({"prompt": prompt, "text": made.text, "tokens": made.tokens, "finish": made.finish}))
        return 0
    if len(prompts) == 1 and flags.sampling.num_beams == 1:
        print(prompts[0], end="", flush=True)
        for piece in stream(model, tokenizer, prompts, flags.sampling):
            print(piece.text, end="", flush=True)
        print()
        return 0
    for prompt, made in zip(prompts, complete(model, tokenizer, prompts, flags.sampling), strict=True):
        print(f"{prompt}{made.text}\n")
    return 0


def chat(argv: Sequence[str]) -> int:
    from limpid.flags import given

    flags = from_dict(ChatFlags, given("chat", ChatFlags, argv))
    from limpid.generate.chat import chat as converse

    model, tokenizer = decoder(flags.what)
    prompt = "> " if sys.stdin.isatty() else ""
    converse(model, tokenizer, flags.sampling, lambda: input(prompt), lambda text: print(text, end="", flush=True))
    return 0


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "trace": trace,
    "explain": explain,
    "compare": compare,
    "inspect": inspect,
    "evaluate": evaluate,
    "doctor": doctor,
    "equations": equations,
    "plan": plan,
    "generate": generate,
    "chat": chat,
    "compress": compress,
    "decompress": decompress,
}
