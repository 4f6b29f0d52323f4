"""Options that are right one by one and wrong together, or that would do nothing; sizes that fit into no memory."""

import random

from benchmarks.robustness.bad.case import Cases, Expect, Step, change, have, put
from benchmarks.robustness.bad.damage import void
from benchmarks.robustness.bad.stock import TASK, train

RUN = have("runs/a", "text.txt", "other.txt")
BOTH = have("runs/a", "runs/b", "llama", "gpt2", "text.txt", "other.txt")

TRAIN: list[tuple[str, dict[str, object], Expect]] = [
    ("width that the heads do not divide", {"d_model": 15}, "refuse"),
    ("more heads than features", {"num_heads": 32}, "refuse"),
    ("heads that the groups do not divide", {"num_heads": 4, "num_kv_heads": 3}, "refuse"),
    ("more key heads than query heads", {"num_kv_heads": 4}, "refuse"),
    ("an odd head cannot rotate", {"d_head": 7}, "refuse"),
    ("a window on a block that does not exist", {"attention_window": 4, "windowed_blocks": "5"}, "refuse"),
    ("windowed blocks without a window", {"windowed_blocks": "0"}, "refuse"),
    ("the same block twice", {"attention_window": 4, "windowed_blocks": "0,0"}, "any"),
    ("a window longer than the context", {"attention_window": 400}, "any"),
    (
        "rotary scaling of learned positions",
        {"positions": "learned", "rotary_scaling": "linear", "rotary_factor": 2},
        "refuse",
    ),
    ("a rotary factor without scaling", {"rotary_factor": 4}, "refuse"),
    ("scaling by less than 1", {"rotary_scaling": "linear", "rotary_factor": 0.5}, "any"),
    ("scaling by zero", {"rotary_scaling": "linear", "rotary_factor": 0}, "refuse"),
    ("low above high", {"rotary_scaling": "llama3", "rotary_factor": 2, "rotary_low": 8, "rotary_high": 2}, "refuse"),
    ("low equals high", {"rotary_scaling": "llama3", "rotary_factor": 2, "rotary_low": 4, "rotary_high": 4}, "refuse"),
    (
        "an original context of zero",
        {"rotary_scaling": "yarn", "rotary_factor": 2, "rotary_original_context": 0},
        "refuse",
    ),
    ("a rotary base of 1", {"rotary_base": 1}, "any"),
    ("a negative rotary base", {"rotary_base": -10000}, "refuse"),
    ("a recorded step beyond the run", {"record_steps": 10}, "refuse"),
    ("step 0 is recorded", {"record_steps": 0}, "refuse"),
    ("a step recorded twice", {"record_steps": "1,1"}, "any"),
    ("a vocabulary smaller than the tokenizer's", {"vocab_size": 10}, "refuse"),
    ("a BPE smaller than the bytes", {"tokenizer": "bpe", "tokenizer_vocab_size": 10}, "refuse"),
    ("a BPE size for a tokenizer of bytes", {"tokenizer_vocab_size": 400}, "refuse"),
    ("a text as the tokenizer", {"tokenizer": "text.txt"}, "refuse"),
    ("a folder as the tokenizer", {"tokenizer": "."}, "refuse"),
    ("a context longer than the text", {"context_length": 100000}, "refuse"),
    ("a text of which nothing is left to train on", {"validation_fraction": 0.9999}, "any"),
    ("dropout of everything", {"dropout": 1.0}, "refuse"),
    ("the schedule's end above its peak", {"min_learning_rate_ratio": 7}, "any"),
    ("more warm-up than steps", {"warmup_steps": 100}, "any"),
    ("more cycles than steps", {"schedule": "cosine_restarts", "schedule_cycles": 500}, "any"),
    ("decay of more than the run", {"schedule": "warmup_stable_decay", "decay_fraction": 2}, "refuse"),
    ("a learning rate at which it diverges", {"learning_rate": 1e30, "max_steps": 3}, "any"),
    ("weights too large for any format", {"init_std": 1e38, "precision": "fp16"}, "any"),
    ("an ε that float32 takes for 0", {"norm_eps": 1e-300, "eps": 1e-300}, "any"),
    ("everything frozen", {"frozen": "*"}, "refuse"),
    ("a pattern that no parameter matches", {"frozen": "nothing.here.*"}, "refuse"),
    ("a pattern that is none", {"frozen": "["}, "refuse"),
    ("no attention and no residual", {"attention_residual": "no", "num_heads": 1}, "any"),
    ("samples in characters it never saw", {"tokenizer": "characters", "sample_prompt": "☃\U0001f9a6"}, "any"),
    ("a name that is empty", {"name": ""}, "refuse"),
    ("a name that is a file", {"name": "./text.txt"}, "refuse"),
    ("a name below a file", {"name": "text.txt/run"}, "refuse"),
    ("a name longer than a name can be", {"name": "n" * 300}, "refuse"),
    ("a name in a device", {"name": "/dev/null/run"}, "refuse"),
    ("a name of dots", {"name": ".."}, "refuse"),
    ("a name where nothing can be made", {"name": "/proc/run"}, "refuse"),
    ("the name of another run", {"name": "a"}, "refuse"),
    ("the name of a folder with files of one's own", {"name": "./mine"}, "any"),
    ("threads by the million", {"threads": 10**6}, "any"),
    ("another run's steps", {"resume": "runs/a", "max_steps": 2}, "refuse"),
    ("nothing left to do", {"resume": "runs/a", "max_steps": 6}, "any"),
    ("a run that does not exist", {"resume": "runs/zzz"}, "refuse"),
    ("a text as a run", {"resume": "text.txt"}, "refuse"),
    ("sizes with weights of other sizes", {"init_from": "runs/a", "d_model": 32}, "refuse"),
    ("more layers than the weights have", {"init_from": "llama", "num_layers": 7}, "refuse"),
    ("positions that the weights do not have", {"init_from": "llama", "positions": "learned"}, "refuse"),
    ("another norm than the weights'", {"init_from": "gpt2", "norm": "rms"}, "refuse"),
    ("another tokenizer than the weights'", {"init_from": "runs/a", "tokenizer": "characters"}, "refuse"),
    ("a checkpoint beyond the run", {"init_from": "runs/a@99"}, "refuse"),
    ("a checkpoint that is no number", {"init_from": "runs/a@x"}, "refuse"),
    ("a checkpoint before the run", {"init_from": "runs/a@-1"}, "refuse"),
    ("a text as weights", {"init_from": "text.txt"}, "refuse"),
    ("a recipe and a rule against it", {"recipe": "fast", "optimizer": "sgd"}, "any"),
    ("a million layers", {"num_layers": 10**6, "d_model": 4096}, "refuse"),
    ("a width of a million", {"d_model": 10**6, "num_heads": 1000}, "refuse"),
    ("an MLP of 10¹²", {"d_ff": 10**12}, "refuse"),
    ("a vocabulary of 10¹²", {"vocab_size": 10**12}, "refuse"),
    ("a vocabulary beyond 64 bits", {"vocab_size": 2**70}, "refuse"),
    ("10⁹ heads of one feature", {"num_heads": 10**9, "d_head": 1, "positions": "none"}, "refuse"),
    ("a batch of 10¹²", {"batch_size": 10**12}, "refuse"),
    ("a batch beyond 64 bits", {"batch_size": 2**64}, "refuse"),
]

OTHERS: list[tuple[str, str, Expect]] = [
    ("resume with another text", "train other.txt --resume runs/a --max-steps 8", "refuse"),
    ("resume with another width", "train --resume runs/a --d-model 32 --max-steps 8", "refuse"),
    ("resume from other weights", "train --resume runs/a --init-from runs/b --max-steps 8", "refuse"),
    ("resume with another tokenizer", "train --resume runs/a --tokenizer bytes --max-steps 8", "refuse"),
    ("resume with another seed", "train --resume runs/a --seed 5 --max-steps 8", "refuse"),
    ("resume of a model folder", "train --resume llama --max-steps 8", "refuse"),
    ("a step beyond the run", "trace runs/a --step 7", "refuse"),
    ("step 0", "trace runs/a --step 0", "refuse"),
    ("a step of a text", "trace llama --text hello --step 3", "refuse"),
    ("a step of the worked model", "trace --worked --step 3", "refuse"),
    ("a run and the worked model", "trace runs/a --worked", "refuse"),
    ("a recorded step and another number", "trace runs/a/steps/000002.safetensors --step 5", "refuse"),
    ("a quantity that does not exist", "trace runs/a --quantity blocks.9.attention.scores", "refuse"),
    ("no text", "trace llama --text=", "refuse"),
    ("a model without a text", "trace llama", "refuse"),
    ("a text that is a run", "trace text.txt", "refuse"),
    ("rows of a text", "trace llama --text hello --rows", "refuse"),
    ("a place for what is not recorded", "trace runs/a --output x.safetensors", "refuse"),
    ("an output that is the model", "trace llama --text hello --output llama/config.json", "refuse"),
    ("an output in no folder", "trace llama --text hello --output no/such/folder/x.safetensors", "any"),
    ("an entry that does not exist", "explain runs/a blocks.0.nothing[0]", "refuse"),
    ("an index beyond the array", "explain runs/a blocks.0.attention.scores[0,1,5,99]", "refuse"),
    ("too few indices", "explain runs/a blocks.0.attention.scores[0,1]", "any"),
    ("too many indices", "explain runs/a blocks.0.attention.scores[0,0,0,0,0,0]", "refuse"),
    ("half an index", "explain runs/a blocks.0.attention.scores[0,", "refuse"),
    ("an index beyond 64 bits", f"explain runs/a blocks.0.attention.scores[0,0,0,{10**30}]", "refuse"),
    ("an index that is no number", "explain runs/a blocks.0.attention.scores[a,b,c,d]", "refuse"),
    ("an index without a name", "explain runs/a [0,0]", "refuse"),
    ("code as an index", "explain runs/a blocks.0.attention.scores[__import__('os').getpid()]", "refuse"),
    ("two entries", "explain runs/a blocks.0.attention.scores[0,0,0,0] loss", "refuse"),
    ("one model", "compare runs/a", "refuse"),
    ("three models", "compare runs/a runs/a runs/b", "refuse"),
    ("models of other sizes", "compare runs/a runs/b", "refuse"),
    ("models of other families", "compare llama gpt2", "refuse"),
    ("a word that does not exist", "compare runs/a runs/a:quantum", "refuse"),
    ("a precision that does not exist", "compare runs/a runs/a:fp4", "refuse"),
    ("two precisions at once", "compare runs/a runs/a:fp32:bf16", "refuse"),
    ("two paths at once", "compare runs/a runs/a:cached:transformers", "refuse"),
    ("no processes", "compare runs/a runs/a:processes=0", "refuse"),
    ("half a process", "compare runs/a runs/a:processes=0.5", "refuse"),
    ("a thousand processes for four rows", "compare runs/a runs/a:processes=1000", "refuse"),
    ("an adapter that does not exist", "compare runs/a runs/a:lora=nothing", "refuse"),
    ("an adapter that is a model", "compare llama llama:lora=gpt2", "refuse"),
    ("only a colon", "compare : :", "refuse"),
    ("a colon and no word", "compare runs/a runs/a:", "any"),
    ("no text", "compare runs/a runs/a:plain --text=", "refuse"),
    ("a position beyond the text", "inspect runs/a --position 100000", "refuse"),
    ("a position before the text", "inspect runs/a --position -100000", "refuse"),
    ("a token that is none", "inspect runs/a --token thequickbrownfoxneverwas", "refuse"),
    ("two words of an analogy", "inspect runs/a --word a --word b", "any"),
    ("no word", "inspect runs/a --word=", "refuse"),
    ("a model without a text", "inspect llama", "refuse"),
    ("an output that is a file", "inspect runs/a --output text.txt", "refuse"),
    ("an empty text", "evaluate runs/a empty.txt", "refuse"),
    ("a text that does not exist", "evaluate runs/a nothing.txt", "refuse"),
    ("a model without a text", "evaluate llama", "refuse"),
    ("more context than the model has", "evaluate runs/a other.txt --context 1000", "refuse"),
    ("a stride beyond the context", "evaluate runs/a other.txt --stride 1000", "refuse"),
    ("certain confidence", "evaluate runs/a other.txt --confidence 1", "refuse"),
    ("no confidence", "evaluate runs/a other.txt --confidence 0", "refuse"),
    ("a text and tasks", "evaluate runs/a other.txt --tasks tasks.jsonl", "any"),
    ("tasks that are a text", "evaluate runs/a --tasks other.txt", "refuse"),
    ("tasks that do not exist", "evaluate runs/a --tasks nothing.jsonl", "refuse"),
    ("against nothing", "evaluate runs/a other.txt --against runs/zzz", "refuse"),
    ("against a text", "evaluate runs/a other.txt --against text.txt", "refuse"),
    ("an output that is the text", "evaluate runs/a other.txt -o other.txt", "refuse"),
    ("a field of a text without fields", "evaluate runs/a other.txt --text-field body", "any"),
    ("a file that does not exist", "compress runs/a nothing", "refuse"),
    ("a folder", "compress runs/a runs", "refuse"),
    ("onto itself", "compress runs/a other.txt -o other.txt -f", "refuse"),
    ("onto itself by another name", "compress runs/a other.txt -o ./runs/../other.txt -f", "refuse"),
    ("onto a file that is there", "compress runs/a other.txt -o text.txt", "refuse"),
    ("onto the model", "compress runs/a other.txt -o runs/a -f", "refuse"),
    ("onto the model's weights", "compress llama other.txt -o llama/config.json -f", "refuse"),
    ("into no folder", "compress runs/a other.txt -o no/such/place", "refuse"),
    ("a file that is not compressed", "decompress text.txt -o out", "refuse"),
    ("a name without an ending", "decompress other.txt", "refuse"),
    ("no prompt that fits", "generate runs/a " + "the" * 400, "any"),
    ("more beams than tokens", "generate runs/a the -n 3 --num-beams 5000", "any"),
    ("beams and draws", "generate runs/a the -n 3 --num-beams 2 --temperature 0.7 --top-k 3", "any"),
    ("a stop of nothing", "generate runs/a the -n 3 --stop=", "any"),
    ("no model", "generate", "refuse"),
    ("a model that is a text", "generate text.txt the", "refuse"),
    ("a model that is a data set", "chat other.txt", "refuse"),
    ("a branch that does not exist", "equations --branch astrology", "refuse"),
    ("a paper that nobody cites", "equations --paper zzzzzz", "refuse"),
    ("errata and a measurement", "equations softmax --errata --branch calculus", "any"),
    ("a rule that does not exist", "doctor --explain no-such-rule", "refuse"),
    ("a look before the first step of a log", "doctor log.csv --preflight", "refuse"),
    ("a text as a log", "doctor text.txt", "refuse"),
    ("a log that does not exist", "doctor nothing.csv", "refuse"),
    ("a name that nobody published", "plan llama-9-900b", "refuse"),
    ("a model and only its size", "plan gpt2 --params 70B --tokens 1T", "refuse"),
    ("a model and only FLOPs", "plan gpt2 --compute 1e21", "refuse"),
    ("more parts than devices", "plan llama-3-8b --devices 8 --device h100 --tensor 16", "refuse"),
    ("parts that do not divide the devices", "plan llama-3-8b --devices 8 --device h100 --tensor 3", "refuse"),
    ("more stages than layers", "plan gpt2 --devices 64 --device h100 --pipeline 64", "refuse"),
    ("a stage of ZeRO that does not exist", "plan gpt2 --zero 4", "refuse"),
    ("a device that nobody built", "plan gpt2 --device potato", "refuse"),
    ("a figure that does not exist", "plan gpt2 --why memory.nothing", "refuse"),
    ("a number with an odd suffix", "plan gpt2 --tokens 1X", "refuse"),
    ("a number with two suffixes", "plan gpt2 --tokens 70BB", "refuse"),
    ("no run to fit", "plan fit", "refuse"),
    ("a run that does not exist", "plan fit nothing.csv", "refuse"),
    ("a fit of a text", "plan fit text.txt", "refuse"),
    ("an engine for a published model on many devices", "plan gpt2 --explain-engine --devices 8", "any"),
]

TASKS: list[tuple[str, str, Expect]] = [
    ("no questions", "", "refuse"),
    ("no choices", '{"query": "a", "choices": [], "gold": 0}\n', "refuse"),
    ("an answer beyond the choices", '{"query": "a", "choices": ["b", "c"], "gold": 2}\n', "refuse"),
    ("an answer before the choices", '{"query": "a", "choices": ["b", "c"], "gold": -1}\n', "any"),
    ("an answer that is no number", '{"query": "a", "choices": ["b", "c"], "gold": "x"}\n', "refuse"),
    ("an answer between two", '{"query": "a", "choices": ["b", "c"], "gold": 0.5}\n', "refuse"),
    ("no answer", '{"query": "a", "choices": ["b", "c"]}\n', "refuse"),
    ("a null question", '{"query": null, "choices": ["b", "c"], "gold": 0}\n', "refuse"),
    ("choices that are numbers", '{"query": "a", "choices": [1, 2], "gold": 0}\n', "any"),
    ("choices that are one text", '{"query": "a", "choices": "bc", "gold": 0}\n', "refuse"),
    ("empty choices", '{"query": "a", "choices": ["", ""], "gold": 0}\n', "any"),
    ("one choice", '{"query": "a", "choices": ["b"], "gold": 0}\n', "any"),
    ("a list instead of a question", '["a"]\n', "refuse"),
    ("half a line", '{"query": "a", "choi', "refuse"),
    ("lone surrogates", '{"query": "\\ud800", "choices": ["\\udfff", "c"], "gold": 0}\n', "any"),
]


def cases(rng: random.Random) -> Cases:
    found = Cases("nonsense")
    for what, options, expect in TRAIN:
        mine: tuple[Step, ...] = (BOTH if {"resume", "init_from", "name"} & set(options) else have("text.txt"),)
        if options.get("name") == "./mine":
            mine += (put("mine/model/notes.txt", "mine"), put("mine/metrics.jsonl", "mine"))
        argv = train(**options)
        if "resume" in options:
            argv = ("train", "--resume", str(options["resume"]))
            argv += ("--max-steps", str(options["max_steps"])) if "max_steps" in options else ()
        elif "init_from" in options:  # sizes come from the weights
            sizes: dict[str, object] = dict.fromkeys(
                ("num_layers", "d_model", "num_heads", "context_length", "tokenizer"), None
            )
            argv = train(**(sizes | options))
        words = [w for name, v in options.items() for w in (name, str(v)[:20])] + ["memory", "GB"]
        found.add("train-" + what, what, *argv, lay=mine, expect=expect, names=tuple(words), writes=("runs/a/*",))
    for what, line, expect in OTHERS:
        quick = have("log.csv", "tasks.jsonl")
        argv = tuple(line.split())
        lay: tuple[Step, ...] = (BOTH, quick, put("empty.txt", ""))
        found.add(
            f"{argv[0]}-{what}", what, *argv, lay=lay, expect=expect, writes=("runs/a/*",) if "resume" in line else ()
        )
    for what, content, expect in TASKS:
        lay = (RUN, put("tasks.jsonl", content))
        found.add("tasks-" + what, what, "evaluate", "runs/a", "--tasks", "tasks.jsonl", lay=lay, expect=expect)
        mixed = (RUN, put("tasks.jsonl", f"{TASK}\n".replace("'", '"') * 3 + content))
        if content and rng.random() < 0.5:
            found.add(
                "tasks-late-" + what, what, "evaluate", "runs/a", "--tasks", "tasks.jsonl", lay=mixed, expect=expect
            )
    lay = (RUN, change("runs/a", lambda run: void(run.rename(run.with_name("gone")))))
    found.add("last-of-none", "last, where another run is called gone", "trace", "last", lay=lay, expect="any")
    found.add("last-without-runs", "last, where there are no runs", "trace", "last", names=("run", "last"))
    return found
