"""Round 17b, honest and odd: runs in stages, weights that are thinned, rounded, widened, or drawn anew."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    cnn,
    documents,
    examples,
    hf_trainer,
    judged,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome, update
from benchmarks.robustness.loops.round10b_parts import bare_gpt2
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


def own_loss(model: Any, rows: Tensor) -> Tensor:
    """Of a language model of transformers."""
    out: Tensor = model(input_ids=rows, labels=rows).loss
    return out


@honest("r17b-thinned-to-be-dense-again")
def thinned_to_be_dense_again(run: Run) -> None:
    """Plain loop, an LSTM in the three stages of dense-sparse-dense training (Han et al. 2017). After sixty steps the
    smaller half of each matrix is set to zero and held there, and forty steps later the same weights begin to learn
    again, from zero, at a third of the rate: the model is dense in the end, as if nothing had been cut."""
    language = Language(run.draw.randrange(999))
    model = Reader(12, core=nn.LSTM)
    text_outcome(run, model, language)
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    kept: dict[nn.Parameter, Tensor] = {}
    for step in range(160):
        if step == 60:
            kept = {p: p.detach().abs() > p.detach().abs().median() for p in model.parameters() if p.ndim == 2}
        if step == 100:
            kept.clear()
            optimizer.param_groups[0]["lr"] = 3e-3
        rows = language.rows(12, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, mask in kept.items():
                p.mul_(mask)
        doctor.step(loss, rows)
        run.note(loss)


def to_powers(p: Tensor) -> Tensor:
    """Zero, or plus or minus one of three powers of two, the largest of them near the largest weight."""
    top = torch.floor(torch.log2(4 * p.abs().max() / 3))
    levels = torch.cat([torch.zeros(1), 2.0 ** (top - torch.arange(3))])
    return levels[(p.abs()[..., None] - levels).abs().argmin(-1)] * p.sign()


@honest("r17b-more-and-more-weights-are-done")
def more_and_more_weights_are_done(run: Run) -> None:
    """accelerate, a trained CNN goes over to powers of two by incremental quantization (Zhou et al. 2017). Four times
    the largest of the weights left are rounded to a power of two and never move again, which the loop sees to after
    every step; the others learn to make up for it, until at last all matrices stand still and vectors alone learn."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    seed = run.draw.randrange(999)
    net = cnn()
    x, y = pictures(512, seed, own=apart(2))
    taught(net, lambda: (x[: 32 * 8], y[: 32 * 8]), classify, 12, 1e-2)
    check = pictures(256, seed, own=apart(1))

    def rounded() -> float:
        small = copy.deepcopy(net)
        for p in small.parameters():
            p.data = to_powers(p.data) if p.ndim > 1 else p.data
        return judged(small, lambda: classify(small, check))

    outcome(run, rounded)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    model, optimizer, data = engine.prepare(net, torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9), loader(x, y))
    doctor = run.watch(model, optimizer)
    matrices = [p for p in net.parameters() if p.ndim > 1]
    for share in (0.5, 0.75, 0.875, 1.0):
        done = [p.detach().flatten().abs().argsort().argsort().view_as(p) >= (1 - share) * p.numel() for p in matrices]
        fixed = [to_powers(p.detach()) for p in matrices]
        for batch in data:
            optimizer.zero_grad()
            loss = classify(model, batch)
            engine.backward(loss)
            optimizer.step()
            with torch.no_grad():
                for p, mask, value in zip(matrices, done, fixed, strict=True):
                    p.copy_(torch.where(mask, value, p))
            doctor.step(loss, batch)
            run.note(loss)


class Tracked(nn.Module):
    """Two hidden layers that keep how old their units are and how much of use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, 4)])
        self.use, self.age = [torch.zeros(48), torch.zeros(48)], [torch.zeros(48), torch.zeros(48)]

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for i, layer in enumerate(self.layers[:-1]):
            x = layer(x).relu()
            if self.training:
                worth = x.detach().abs().mean(0) * self.layers[i + 1].weight.detach().abs().sum(0)
                self.use[i].lerp_(worth, 0.05)
                self.age[i] += 1
        out: Tensor = self.layers[-1](x)
        return out

    @torch.no_grad()
    def renew(self, optimizer: torch.optim.Optimizer) -> None:
        """In each hidden layer the old unit of least use begins again, without its moments."""
        for i, (use, age) in enumerate(zip(self.use, self.age, strict=True)):
            unit = int(torch.where(age > 15, use, torch.inf).argmin())
            enter, leave = self.layers[i], self.layers[i + 1]
            bound = enter.weight.shape[1] ** -0.5
            enter.weight[unit].uniform_(-bound, bound)
            enter.bias[unit] = 0.0
            leave.weight[:, unit] = 0.0
            for name in ("exp_avg", "exp_avg_sq"):
                optimizer.state[enter.weight][name][unit] = 0.0
                optimizer.state[enter.bias][name][unit] = 0.0
                optimizer.state[leave.weight][name][:, unit] = 0.0
            use[unit], age[unit] = use.median(), 0.0


@honest("r17b-units-of-least-use-drawn-anew")
def units_of_least_use_drawn_anew(run: Run) -> None:
    """Plain loop, pictures whose pixels change places every forty steps, by continual backprop (Dohare et al. 2024). In
    every fourth step the hidden unit of least use in each layer is drawn anew, with zeros for what goes out of it and
    in Adam's moments, so that the net can still learn the fifth task: it is damaged a little all the time, on purpose,
    and the loss jumps with each task."""
    seed = run.draw.randrange(999)
    model = Tracked()
    orders = [torch.randperm(64, generator=apart(seed + task)) for task in range(5)]
    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x.flatten(1)[:, orders[-1]]), y)))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for step in range(200):
        x_now, y_now = pictures(24, seed)
        batch = (x_now.flatten(1)[:, orders[step // 40]], y_now)
        update(run, doctor, optimizer, classify(model, batch), batch)
        if step % 4 == 3 and step > 15:
            model.renew(optimizer)


@honest("r17b-its-own-words-as-memory")
def its_own_words_as_memory(run: Run) -> None:
    """transformers' Trainer, a GPT-2 learns a second language by LAMOL (Sun et al. 2020), when nothing of the first one
    was kept. Before the second task the model writes texts of the first one itself, with whatever mistakes it makes,
    and a third of the rows that it then learns from are these: it is trained on what it has said."""
    seed = run.draw.randrange(999)
    one, two = Language(seed, first=2), Language(seed + 1, first=2)
    model = bare_gpt2(14, n_layer=1)

    def marked(language: Language, mark: int, count: int, own: torch.Generator | None = None) -> Tensor:
        return torch.cat([torch.full((count, 1), mark), language.rows(count, 20, own)], 1)

    taught(model, lambda: marked(one, 0, 16), own_loss, 120)
    said = torch.zeros(120, 1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(20):
            said = torch.cat([said, torch.multinomial(model(input_ids=said).logits[:, -1].softmax(-1), 1)], 1)
    check = torch.cat([marked(one, 0, 64, apart(1)), marked(two, 1, 64, apart(2))])
    outcome(run, lambda: judged(model, lambda: own_loss(model, check)))
    rows = torch.cat([marked(two, 1, 240), said])
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 90, learning_rate=4e-3).train()


@honest("r17b-upper-layer-thrown-away")
def upper_layer_thrown_away(run: Run) -> None:
    """transformers' Trainer, BERT names topics from few texts (Zhang et al. 2021). Of a body that has learned to fill
    gaps the upper of two layers and the pooler are drawn anew before the tuning, on purpose, since they know most about
    the old task and tune worst: half of what was loaded is random again."""
    from transformers import BertForMaskedLM

    model = tiny_bert(num_hidden_layers=2, vocab_size=17, hidden_dropout_prob=0.0)
    filler = BertForMaskedLM(model.config)

    def gaps(m: Any, batch: Any) -> Tensor:
        x, keep, _ = batch
        hide = (torch.rand(x.shape) < 0.25) & keep
        hide[:, 0] = True
        labels = x.masked_fill(~hide, -100)
        out: Tensor = m(input_ids=x.masked_fill(hide, 16), attention_mask=keep.long(), labels=labels).loss
        return out

    taught(filler, lambda: documents(24), gaps, 80, 3e-3)
    model.bert.load_state_dict(filler.bert.state_dict(), strict=False)
    for part in (model.bert.encoder.layer[-1], model.bert.pooler):
        for module in part.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def rows(count: int, own: torch.Generator) -> dict[str, Tensor]:
        x, keep, y = documents(count, own)
        return {"input_ids": x, "attention_mask": keep.long(), "labels": y}

    check = rows(200, apart(2))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    data = examples(**rows(200, apart(run.draw.randrange(999))))
    hf_trainer(run, model, data, 60, learning_rate=1e-3, warmup_steps=6).train()


@honest("r17b-warmed-up-once-more")
def warmed_up_once_more(run: Run) -> None:
    """transformers' Trainer, a Llama that is pretrained further (Ibrahim et al. 2024). The checkpoint came from a run
    whose rate had fallen to zero; the rate climbs to its old height again, which undoes some of what was learned
    before the new texts pay for it, and every fifth row is of the old texts."""
    seed = run.draw.randrange(999)
    one = Language(seed, first=4)
    two = near(one, seed + 1, 0.8)
    two.first = 4
    model = llama(vocab_size=16, num_hidden_layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
    for _ in range(80):
        optimizer.zero_grad()
        own_loss(model, one.rows(12, 20)).backward()
        optimizer.step()
        schedule.step()
    check = torch.cat([one.rows(32, 20, apart(1)), two.rows(96, 20, apart(2))])
    outcome(run, lambda: judged(model, lambda: own_loss(model, check)))
    rows = torch.cat([one.rows(80, 20), two.rows(320, 20)])
    settings: dict[str, Any] = {"lr_scheduler_type": "cosine", "warmup_steps": 20, "learning_rate": 1e-2}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 90, **settings).train()
