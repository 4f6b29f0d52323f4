"""Names, texts and files that hold commands for the terminal: none of them may reach it as they are."""

import json
import math
import random
from pathlib import Path

from benchmarks.robustness.bad.case import Cases, Expect, Step, change, have, put
from benchmarks.robustness.bad.damage import field, header, void
from benchmarks.robustness.bad.stock import train

EVIL = {
    "title": "\x1b]0;owned\x07", "clear": "\x1b[2J\x1b[1;1H", "C1": "\x9b2J", "bell": "\x07", "overwrite": "\rowned",
    "backspaces": "\x08\x08\x08\x08owned", "backwards": "\u202eowned\u202c", "device": "\x1bP1$r\x1b\\",
    "reset": "\x1bc", "clipboard": "\x1b]52;c;b3duZWQ=\x07", "link": "\x1b]8;;http://x.invalid\x07owned\x1b]8;;\x07",
}  # fmt: skip


def places(evil: str) -> list[tuple[str, Expect, tuple[str, ...], tuple[Step, ...]]]:
    """Where it stands, whether any user would want a refusal, the command, and what is laid out."""
    run, llama, gpt2 = have("runs/a", "text.txt", "other.txt"), have("llama"), have("gpt2")
    config, tokenizer = "llama/config.json", change("llama/tokenizer.json", lambda p: tokens(p, evil))
    logged = lines({"loss": 2.0, f"x{evil}": 1.0, "note": evil})
    broken = lines({f"loss/{evil}": math.nan, "loss": math.nan})
    family = change(config, field("model_type", value=evil))
    activation = change(config, field("hidden_act", value=evil))
    tensor = change("gpt2/model.safetensors", header(lambda h: h.update({f"h.{evil}": h.pop(sorted(h)[-1])})))
    shard = change("llama/*.index.json", field("weight_map", "model.norm.weight", value=evil + ".safetensors"))
    packed = change("packed.limpid", lambda p: renamed(p, evil))
    moved = change("runs/a", lambda p: void(p.rename(p.with_name("b" + evil.replace("/", "")))))
    told = change("runs/a/findings.jsonl", lambda p: said(p, evil))
    gone = change("runs/a/config.toml", lambda p: void(p.write_text(p.read_text().replace("text.txt", escaped(evil)))))
    key, value = (
        put("c.toml", f'[model]\n"{escaped(evil)}" = 1\n'),
        put("c.json", json.dumps({"model": {"norm": evil}})),
    )
    question = json.dumps({"query": evil, "choices": [evil + "a", "b"], "gold": 7}) + "\n"
    file = evil.replace("/", "")
    found: list[tuple[str, Expect, tuple[str, ...], tuple[Step, ...]]] = [
        ("the verb", "refuse", ("train" + evil,), ()),
        ("an option's name", "refuse", (*train(), f"--{evil}", "1"), ()),
        ("a path that is not there", "refuse", ("train", f"no{evil}.txt", *train()[2:]), ()),
        ("a text's name", "any", ("train", f"my{file}.txt", *train()[2:]), (put(f"my{file}.txt", "some text " * 99),)),
        ("a run's name", "any", train(name=f"r{file}"), (run,)),
        ("a name like another run's", "refuse", ("trace", f"runs/{evil}"), (run, moved)),
        ("a prompt", "any", ("generate", "runs/a", f"the{evil}fox", "-n", "4"), (run,)),
        ("a stop", "any", ("generate", "runs/a", "the", "-n", "4", "--stop", evil), (run,)),
        ("a sample's prompt", "any", train(sample_prompt=evil), (run,)),
        ("what is said in chat", "any", ("chat", "runs/a", "-n", "3"), (run,)),
        ("a text to trace", "any", ("trace", "runs/a/model", "--text", f"the{evil}"), (run,)),
        ("a text to inspect", "any", ("inspect", "runs/a", "--text", f"the fox {evil} runs over"), (run,)),
        ("a token", "any", ("inspect", "runs/a", "--token", evil), (run,)),
        ("a quantity", "refuse", ("trace", "runs/a", "--quantity", evil), (run,)),
        ("an entry", "refuse", ("explain", "runs/a", evil + "[0]"), (run,)),
        ("a variant", "refuse", ("compare", "runs/a", f"runs/a:{evil}"), (run,)),
        ("an equation", "refuse", ("equations", evil), ()),
        ("a plan", "refuse", ("plan", evil), ()),
        ("a device", "refuse", ("plan", "gpt2", "--device", evil), ()),
        ("a rule", "refuse", ("doctor", "--explain", evil), ()),
        ("a log's keys", "any", ("doctor", "l.jsonl"), (put("l.jsonl", logged),)),
        ("a broken log's keys", "any", ("doctor", "l.jsonl"), (put("l.jsonl", broken),)),
        ("a log's columns", "any", ("doctor", "l.csv"), (put("l.csv", f"step,loss,x{evil}\n" + "1,2,3\n" * 30),)),
        ("a log's name", "any", ("doctor", f"{file}.csv"), (put(f"{file}.csv", "step,loss\n1,2\n2,nan\n"),)),
        ("a fit's columns", "any", ("plan", "fit", "f.csv"), (put("f.csv", f"params{evil},tokens,loss\n1,2,3\n"),)),
        ("a finding", "any", ("doctor", "runs/a"), (run, told)),
        ("a configuration", "refuse", (*train(), "--config", "c.toml"), (run, key)),
        ("a configured value", "refuse", (*train(), "--config", "c.json"), (run, value)),
        ("a model's family", "refuse", ("generate", "llama", "the"), (llama, family)),
        ("a model's activation", "refuse", ("trace", "llama", "--text", "the fox"), (llama, activation)),
        ("a tensor's name", "refuse", ("generate", "gpt2", "the"), (gpt2, tensor)),
        ("a shard's name", "refuse", ("generate", "llama", "the"), (llama, shard)),
        ("a tokenizer's tokens", "any", ("generate", "llama", "the", "-n", "30"), (llama, tokenizer)),
        ("traced tokens", "any", ("trace", "llama", "--text", "the river runs"), (llama, tokenizer)),
        ("a compressed file's model", "refuse", ("decompress", "p.limpid"), (have("packed.limpid"), packed)),
        ("a question", "refuse", ("evaluate", "runs/a", "--tasks", "q.jsonl"), (run, put("q.jsonl", question))),
        ("a document's name", "any", ("trace", "runs/a", "--rows"), (run, gone)),
    ]
    for name in ("--seed", "--norm", "--learning-rate", "--tied", "--record-steps", "--config", "--resume"):
        found.append((f"a value of {name}", "refuse", (*train(), name, evil), (run,)))
    return found


def cases(rng: random.Random) -> Cases:
    found = Cases("terminal")
    for name, evil in EVIL.items():
        for place, expect, argv, lay in places(evil):
            found.add(f"{place}-{name}", f"{name} in {place}", *argv, lay=lay, evil=evil, terminal=True, expect=expect,
                      stdin=f"hello{evil}\n".encode(), writes=("runs/a/*",))  # fmt: skip
    return found


def lines(entry: dict[str, object]) -> str:
    """A log of sixty steps."""
    return "".join(json.dumps({"step": s} | entry) + "\n" for s in range(60))


def escaped(text: str) -> str:
    """As TOML and JSON write it inside quotes."""
    return "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else f"\\u{ord(c):04x}" for c in text)


def said(path: Path, evil: str) -> None:
    """A run whose findings say it."""
    words = dict.fromkeys(("rule", "where", "says", "cause", "fix", "refuted_by"), evil)
    path.write_text(json.dumps({"severity": "warning", "step": 1, "sure": 1.0, "evidence": {}, **words}) + "\n")


def tokens(path: Path, evil: str) -> None:
    """A tokenizer in which every plain token is this."""
    document = json.loads(path.read_text())
    document["decoder"] = None
    document["added_tokens"] += [
        {"id": k, "content": evil + str(k), "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": False} for k in range(100, 250)
    ]  # fmt: skip
    document["model"]["vocab"] = {
        (evil + token if k > 3 else token): k for token, k in document["model"]["vocab"].items()
    }
    document["model"]["merges"] = []
    path.write_text(json.dumps(document))


def renamed(path: Path, evil: str) -> None:
    """A compressed file that names its model so."""
    old, name = path.read_bytes(), evil.encode()
    path.with_name("p.limpid").write_bytes(old[:34] + bytes([len(name)]) + name + old[35 + old[34] :])
