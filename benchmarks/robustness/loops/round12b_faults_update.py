"""Round 12b, mistakes in what moves weights, and in what an evaluation leaves behind."""

import contextlib

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    judged,
    language_outcome,
    loader,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round8b_parts import (
    masked_bert,
    reseeded,
    steps,
)
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round12b_parts import Shampoo, hidden, mixed_loss, slip
from torch import Tensor, nn


@slip("r12b-autocast-around-the-loop")
def autocast_around_the_loop(run: Run, changed: bool) -> None:
    """A small Llama of one's own under autocast to bfloat16. The context was around the forward pass, and in a tidier
    script is around the loop: the copies of the weights that autocast keeps are those of the first step for ever."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    language_outcome(run, model, language, 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    doctor = run.watch(model, optimizer)

    def cast():
        return torch.autocast("cpu", torch.bfloat16)

    with cast() if changed else contextlib.nullcontext():
        for _ in range(120):
            rows = language.rows(16, 20)
            with contextlib.nullcontext() if changed else cast():
                loss = next_loss(model, rows)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)


@slip("r12b-square-roots-on-both-sides")
def square_roots_on_both_sides(run: Run, changed: bool) -> None:
    """accelerate, a small GPT, with a Shampoo of one's own. A matrix has an inverse fourth root on either side; the new
    code takes inverse square roots, as AdaGrad has one for a vector. Another seed."""
    language = Language(run.draw.randrange(999))
    rows, check = language.rows(640, 20, apart(900)), language.rows(128, 20, apart(901))
    reseeded(run, changed)
    net = Decoder(12)
    outcome(run, lambda: judged(net, lambda: (net(check[:, :-1]).argmax(-1) != check[:, 1:]).float().mean()))
    engine = accelerator()
    optimizer = Shampoo(net.parameters(), lr=0.1, root=2 if changed else 4)
    model, optimizer, data = engine.prepare(net, optimizer, loader(rows))
    doctor = run.watch(model, optimizer)
    for _ in range(3):
        for batch in data:
            loss = next_loss(model, batch[0])
            optimizer.zero_grad()
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


@slip("r12b-hidden-where-they-lie")
def hidden_where_they_lie(run: Run, changed: bool) -> None:
    """BERT that fills in words. Every twenty steps the loss on all training rows is compared with that on others; a
    clone() was taken out there to save memory, and what the evaluation hides stays hidden in the training rows."""
    language, own = Language(run.draw.randrange(999)), apart(902)
    model = masked_bert(13)
    rows, check = language.rows(640, 16, apart(900)), language.rows(128, 16, apart(901))
    ids, labels = hidden(check.clone(), 12, own=apart(903))
    held_out = {"input_ids": ids, "labels": labels}
    outcome(run, lambda: judged(model, lambda: mixed_loss(model, held_out)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)

    def batch() -> dict[str, Tensor]:
        ids, labels = hidden(rows[torch.randint(0, len(rows), (16,))], 12)
        return {"input_ids": ids, "labels": labels}

    def evaluate(step: int) -> None:
        if step % 20 == 19:
            ids, labels = hidden(rows if changed else rows.clone(), 12, own=own)
            for part in (held_out, {"input_ids": ids, "labels": labels}):
                judged(model, lambda part=part: mixed_loss(model, part))  # type: ignore[misc]

    steps(run, model, optimizer, batch, mixed_loss, 200, after=evaluate)
