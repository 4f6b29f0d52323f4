"""Round 8b, innocent changes of what runs the loop, of loading, evaluation and weights at the start."""

import io
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    endless,
    examples,
    fit,
    hf_trainer,
    lit,
    loader,
    next_loss,
    tiny_bert,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import near, taught, text_outcome
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    llama,
    masked_bert,
    reseeded,
    steps,
    text_class_outcome,
    texts,
    told_loss,
)
from torch import Tensor, nn


@innocent("r8-plain-loop-given-to-the-trainer")
def plain_loop_given_to_the_trainer(run: Run, changed: bool) -> None:
    """GPT-2 in a plain loop, then in transformers' Trainer with the same optimizer, rate, bound of the norm and size of
    batches; the order is another."""
    language = Language(run.draw.randrange(999))
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    causal_outcome(run, model, language)
    rows = language.rows(320, 20)
    if changed:
        settings: dict[str, Any] = {"learning_rate": 4e-3, "lr_scheduler_type": "constant", "weight_decay": 0.01}
        hf_trainer(run, model, examples(input_ids=rows, labels=rows), 80, **settings, max_grad_norm=1.0).train()
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    batches = endless(loader(rows))

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    steps(run, model, optimizer, lambda: next(batches)[0], causal_loss, 80, between=clip)


@innocent("r8-accelerate-for-a-plain-loop")
def accelerate_for_a_plain_loop(run: Run, changed: bool) -> None:
    """BERT learns hidden words in a plain loop, then in accelerate's; with another seed. What is hidden is drawn beforehand."""
    language = Language(run.draw.randrange(999), 12, first=2)
    reseeded(run, changed)
    model = masked_bert(initializer_range=0.1)
    check, hide = language.rows(128, 20, apart(1)), torch.rand(128, 20, generator=apart(2)) < 0.15

    def asked(rows: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        return {"input_ids": rows.masked_fill(hidden, 1), "labels": rows.masked_fill(~hidden, -100)}

    text_class_outcome(run, model, asked(check, hide))
    rows = language.rows(400, 20)
    data = loader(rows, torch.rand(rows.shape) < 0.15)
    loss = lambda m, b: told_loss(m, asked(*b))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    if changed:
        prepared(run, model, optimizer, data, loss, 4)
    else:
        batches = endless(data)
        steps(run, model, optimizer, lambda: next(batches), loss, 100)


@innocent("r8-lightning-for-a-plain-loop")
def lightning_for_a_plain_loop(run: Run, changed: bool) -> None:
    """A decoder in a plain loop, then in Lightning, with the same rate and bound of the norm; another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    net = Decoder(12, layers=2)
    text_outcome(run, net, language)
    data = loader(language.rows(320, 20))
    loss = lambda m, b: next_loss(m, b[0])
    made = lambda m: torch.optim.Adam(m.parameters(), lr=4e-3)
    if changed:
        fit(run, lit(net, loss, made), data, 80, gradient_clip_val=1.0)
        return
    batches = endless(data)
    clip = lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    steps(run, net, made(net), lambda: next(batches), loss, 80, between=clip)


@innocent("r8-loaded-from-renamed-safetensors")
def loaded_from_renamed_safetensors(run: Run, changed: bool) -> None:
    """A Llama goes on from a checkpoint of torch.save; then from safetensors, whose names lack `model.` and are mapped."""
    from safetensors.torch import load, save

    seed = run.draw.randrange(999)
    language = Language(seed)
    source, model = llama(), llama()
    taught(source, lambda: language.rows(16, 16), causal_loss, 40)
    if changed:
        packed = save({k.removeprefix("model."): v.clone() for k, v in source.state_dict().items()})
        state = {k if k.startswith("lm_head") else f"model.{k}": v for k, v in load(packed).items()}
    else:
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        state = torch.load(file)
    model.load_state_dict(state)
    other = near(language, seed + 1, 0.3)
    causal_outcome(run, model, other)
    steps(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: other.rows(16, 20), causal_loss, 60)


@innocent("r8-judged-every-ten-steps")
def judged_every_ten_steps(run: Run, changed: bool) -> None:
    """A BERT with dropout; every ten steps its accuracy on 256 texts is now asked, in evaluation mode, without gradients and
    without random numbers, and it is put back into training mode."""
    model = tiny_bert()
    check = texts(256, apart(1))
    text_class_outcome(run, model, check)

    def evaluate(step: int) -> None:
        if changed and step % 10 == 9:
            model.eval()
            with torch.no_grad():
                model(check["input_ids"], check["attention_mask"]).logits.argmax(1).eq(check["labels"]).float().mean()
            model.train()

    steps(run, model, torch.optim.AdamW(model.parameters(), lr=2e-3), lambda: texts(24), told_loss, 80, after=evaluate)


@innocent("r8-texts-sampled-in-between")
def texts_sampled_in_between(run: Run, changed: bool) -> None:
    """A GPT-2 with dropout; every ten steps it now writes four texts, by sampling, which takes random numbers, so that
    dropout and batches are other ones from there on."""
    language = Language(run.draw.randrange(999))
    model: Any = tiny_gpt2(12, pad_token_id=None, eos_token_id=None, bos_token_id=None, n_layer=2, resid_pdrop=0.1)
    causal_outcome(run, model, language)

    def write(step: int) -> None:
        if changed and step % 10 == 9:
            model.eval()
            model.generate(language.rows(4, 4), max_new_tokens=6, do_sample=True, attention_mask=torch.ones(4, 4))
            model.train()

    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    steps(run, model, optimizer, lambda: language.rows(16, 20), causal_loss, 80, after=write)


class Built(nn.Module):
    """A decoder whose parts are drawn from the embedding up, or from the head down."""

    def __init__(self, downwards: bool) -> None:
        super().__init__()
        makers: dict[str, Any] = {
            "tokens": lambda: nn.Embedding(12, 32),
            "positions": lambda: nn.Embedding(32, 32),
            "body": lambda: nn.Sequential(Block(32), Block(32)),
            "head": lambda: nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 12)),
        }
        for name, make in reversed(makers.items()) if downwards else makers.items():
            self.add_module(name, make())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))  # type: ignore[operator]
        out: Tensor = self.head(self.body(x))  # type: ignore[operator]
        return out


@innocent("r8-drawn-from-the-head-down")
def drawn_from_the_head_down(run: Run, changed: bool) -> None:
    """The parts of a decoder are made in another order, so that the same seed gives each other weights; the optimizer has
    its parameters in that order too."""
    language = Language(run.draw.randrange(999))
    model = Built(changed)
    text_outcome(run, model, language)
    steps(run, model, torch.optim.AdamW(model.parameters(), lr=4e-3), lambda: language.rows(16, 20), next_loss, 80)
