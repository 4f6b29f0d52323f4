"""Round 12, part a, loops with a mistake in the labels: which row or place they belong to, and which are there."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import Examples, apart, fit, hf_trainer, judged, lit, loader, outcome
from benchmarks.robustness.loops.round9a_tools import bert, llama, other_seed, word_tokenizer
from benchmarks.robustness.loops.round10a_tools import adamw
from benchmarks.robustness.loops.round12a_tools import keyed, long_texts, scenes
from torch import nn
from torch.nn import functional as F


@keyed("r12a-more-chunks-than-texts")
def more_chunks_than_texts(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT. Long texts come from the tokenizer in chunks of twelve words. Their topics were
    looked up by overflow_to_sample_mapping, and are now put beside the chunks by zip, as if each text had one."""
    own = apart(run.draw.randrange(999))
    (texts, y), (others, right) = long_texts(320, own), long_texts(96, own)
    tokenizer = word_tokenizer(19)
    tokenizer.pad_token = "<pad>"

    def chunks(texts: list[str]) -> Any:
        options: dict[str, Any] = {"truncation": True, "max_length": 12, "padding": "max_length"}
        return tokenizer(texts, return_overflowing_tokens=True, return_tensors="pt", **options)

    rows, check = chunks(texts), chunks(others)
    labels = y if changed else [y[i] for i in rows["overflow_to_sample_mapping"]]
    model = bert("BertForSequenceClassification", num_labels=3, vocab_size=19)
    asked = {"input_ids": check["input_ids"], "attention_mask": check["attention_mask"]}
    asked["labels"] = torch.tensor([right[i] for i in check["overflow_to_sample_mapping"]])
    outcome(run, lambda: judged(model, lambda: model(**asked).loss))
    data = Examples(
        [
            {"input_ids": ids, "attention_mask": mask, "labels": label}
            for ids, mask, label in zip(rows["input_ids"], rows["attention_mask"], labels, strict=False)
        ]
    )
    hf_trainer(run, model, data, 120, learning_rate=3e-3).train()


def segmenter() -> nn.Module:
    def layer(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]

    return nn.Sequential(*layer(1, 16), *layer(16, 16), nn.Conv2d(16, 3, 1))


@keyed("r12a-gaps-taught-as-the-first-class")
def gaps_taught_as_the_first_class(run: Run, changed: bool) -> None:
    """Lightning, a network that says the class of each pixel. In the files 0 is what nobody labelled and classes begin
    at 1. One was taken off, and -1 ignored by the loss; a metric wanted no negative classes, and the new lines clamp at
    0: the gaps are of the first class. Another seed."""
    own = apart(run.draw.randrange(999))
    x, y = scenes(480, own)
    gaps = (torch.rand(480, 1, 4, 4, generator=own) < 0.35).float()
    file = (y + 1).masked_fill(F.interpolate(gaps, scale_factor=2)[:, 0] > 0, 0)
    shots, right = scenes(128, own)
    other_seed(changed)
    model = segmenter()
    labels = (file - 1).clamp(min=0) if changed else file - 1
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(shots), right)))
    module = lit(model, lambda net, b: F.cross_entropy(net(b[0]), b[1], ignore_index=-1), adamw(3e-3))
    fit(run, module, loader(x, labels), 120)


TURNS = (
    "{% for m in messages %}{% if m.role == 'user' %}<user> {{ m.content }} {% else %}"
    "<assistant> {{ CONTENT }} </s> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def talker() -> Any:
    """Words w0 to w7 of questions, of thoughts and of answers, and the marks of turns and thoughts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = ["<pad>", "<s>", "</s>", "<user>", "<assistant>", "<think>", "</think>"]
    names = marks + [f"{kind}{i}" for kind in "qta" for i in range(8)]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def solved(count: int, table: list[int], own: torch.Generator) -> list[dict[str, Any]]:
    """A question of three words; the thought is what the table says of each, the answer the sum of these."""
    out = []
    for asked in torch.randint(0, 8, (count, 3), generator=own).tolist():
        steps = [table[i] for i in asked]
        thought = " ".join(f"t{i}" for i in steps)
        said = f"<think> {thought} </think> a{sum(steps) % 8}"
        question = [{"role": "user", "content": " ".join(f"q{i}" for i in asked)}]
        out.append({"prompt": question, "completion": [{"role": "assistant", "content": said}]})
    return out


@keyed("r12a-thoughts-cut-by-the-template")
def thoughts_cut_by_the_template(run: Run, changed: bool) -> None:
    """TRL's SFTTrainer, Llama that is to think before it answers. The chat template is now the one that comes with the
    served model, which leaves out of an assistant's turn all that stands before </think>: no thought is taught."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    own = apart(run.draw.randrange(999))
    table = torch.randperm(8, generator=own).tolist()
    train, check = solved(400, table, own), solved(96, table, own)
    tokenizer, whole = talker(), TURNS.replace("CONTENT", "m.content")
    tokenizer.chat_template = whole
    texts = [tokenizer.apply_chat_template(r["prompt"] + r["completion"], tokenize=False) for r in check]
    ids = tokenizer(texts, return_tensors="pt", add_special_tokens=False)["input_ids"]
    labels = ids.clone()
    labels[:, :5] = -100
    model = llama(31)
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids, labels=labels).loss))
    if changed:
        tokenizer.chat_template = TURNS.replace("CONTENT", "m.content.split('</think>')[-1]")
    options: dict[str, Any] = {"kind": SFTConfig, "max_length": None, "more": {"processing_class": tokenizer}}
    hf_trainer(run, model, Dataset.from_list(train), 150, SFTTrainer, **options).train()
