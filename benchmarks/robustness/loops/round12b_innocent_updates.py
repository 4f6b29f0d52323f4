"""Round 12b, unusual ways to move weights which are meant, each rewritten without harm."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    fit,
    language_outcome,
    lit,
    next_loss,
    pictures,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round8b_parts import causal_loss, causal_outcome, reseeded, steps
from benchmarks.robustness.loops.round9b_parts import picture_outcome, seen, tiny_vit
from benchmarks.robustness.loops.round10b_parts import bare_gpt2
from benchmarks.robustness.loops.round12b_parts import ByChance, accumulate, by_added_bits, by_neighbours
from torch import Tensor, nn


@innocent("r12b-likelihood-maximised")
def likelihood_maximised(run: Run, changed: bool) -> None:
    """A small Llama of one's own whose mean log-likelihood is followed upwards. Its negative went backward; now it goes
    backward as it is, and AdamW is told to maximise."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    language_outcome(run, model, language, 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, maximize=changed)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        rows = language.rows(16, 20)
        likelihood = -next_loss(model, rows)
        optimizer.zero_grad()
        (likelihood if changed else -likelihood).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(likelihood, rows)
        run.note(likelihood)


@innocent("r12b-shrunk-and-perturbed")
def shrunk_and_perturbed(run: Run, changed: bool) -> None:
    """Lightning, a GPT to which a third of the rows comes at a time; whenever some come, weights are made smaller and a
    little of a network as drawn is added. In place before, by a dictionary that is loaded now. Another seed."""
    language = Language(run.draw.randrange(999))
    rows = language.rows(720, 20, apart(900))
    reseeded(run, changed)
    net = Decoder(12)
    language_outcome(run, net, language, 20)

    class Growing(torch.utils.data.Dataset[Tensor]):
        there = 240

        def __len__(self) -> int:
            return self.there

        def __getitem__(self, index: int) -> Tensor:
            return rows[index]

    data = Growing()
    module = lit(net, lambda m, batch: next_loss(m, batch), lambda m: torch.optim.AdamW(m.parameters(), lr=3e-3))

    def on_train_epoch_end() -> None:
        if module.current_epoch in (2, 5):
            data.there += 240
            fresh = Decoder(12).state_dict()
            if changed:
                net.load_state_dict({name: 0.7 * p + 0.1 * fresh[name] for name, p in net.state_dict().items()})
            else:
                for name, p in net.named_parameters():
                    p.data.mul_(0.7).add_(fresh[name], alpha=0.1)

    module.on_train_epoch_end = on_train_epoch_end
    batches = torch.utils.data.DataLoader(data, 16, sampler=Drawn(data))
    fit(run, module, batches, 250, reload_dataloaders_every_n_epochs=1)


class Drawn(torch.utils.data.Sampler[int]):
    """A new order of as many rows as there are now."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Any:
        return iter(torch.randperm(len(self.data)).tolist())


@innocent("r12b-rounded-by-chance")
def rounded_by_chance(run: Run, changed: bool) -> None:
    """A GPT-2 whose weights are bfloat16 and nothing else, rounded up or down by chance after each update. Sixteen
    random bits were added and cut off; now one of the two neighbours is drawn. Other draws."""
    language = Language(run.draw.randrange(999))
    model = bare_gpt2(12, initializer_range=0.08).bfloat16()
    causal_outcome(run, model, language)
    optimizer = ByChance(model.parameters(), 2e-3, by_neighbours if changed else by_added_bits)
    steps(run, model, optimizer, lambda: language.rows(16, 20), causal_loss, 120)


@innocent("r12b-batch-grows-rate-stays")
def batch_grows_rate_stays(run: Run, changed: bool) -> None:
    """A vision transformer with SGD at one rate; the batch is doubled three times in place of a falling rate. Gradients
    of parts of eight pictures were added up; the batch goes through at once now."""
    seed = run.draw.randrange(999)
    x, y = pictures(960, seed, own=apart(seed + 1))
    model = tiny_vit(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
    check = pictures(256, seed, own=apart(seed + 2))
    picture_outcome(run, model, check, seen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        count = 8 * 2 ** (step // 30)
        at = torch.randint(0, len(x), (count,))
        parts = [(x[at], y[at])] if changed else list(zip(x[at].split(8), y[at].split(8), strict=True))
        optimizer.zero_grad()
        loss = accumulate(run, model, parts, lambda part: seen(model, part))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, parts[0] if changed else parts)
        run.note(loss)
