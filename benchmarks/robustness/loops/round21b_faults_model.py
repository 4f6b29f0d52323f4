"""Round 21, part b: mistakes in how a model is wired, masked, begun and taken up again."""

import copy

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import tuned
from benchmarks.robustness.loops.round21b_parts import (
    Duel,
    FillsIn,
    Forecast,
    Glow,
    Spectral,
    StateSpace,
    SumOfWords,
    Swin,
    bent,
    chain,
    flows,
    remembered,
    seasons,
    slip,
    winds,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r21b-advantages-less-everybodys-mean")
def advantages_less_everybodys_mean(run: Run, wrong: bool) -> None:
    """Plain loop, a dueling network learns action values from moves at random. The mean that is taken off the
    advantages is that of the whole batch, all states and actions; asked about one state, as when it acts, the network
    takes off another. The twin takes off each state's own mean."""
    leads, pays, worth = chain()
    net = Duel(10, 3, over_all=wrong)
    target = copy.deepcopy(net)
    one_by_one = torch.eye(10).split(1)
    outcome(run, lambda: judged(net, lambda: (torch.cat([net(s) for s in one_by_one]) - worth).abs().mean()))
    optimizer = adam(net)
    doctor = run.watch(net, optimizer)
    for step in range(150):
        if step % 10 == 0:
            target.load_state_dict(net.state_dict())
        at, action = torch.randint(0, 10, (64,)), torch.randint(0, 3, (64,))
        with torch.no_grad():
            aim = pays[at, action] + 0.8 * target(torch.eye(10)[leads[at, action]]).amax(1)
        loss = F.smooth_l1_loss(net(torch.eye(10)[at]).gather(1, action[:, None]).squeeze(1), aim)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (at, action))
        run.note(loss)


@slip("r21b-padding-drawn-with-the-rest")
def padding_drawn_with_the_rest(run: Run, wrong: bool) -> None:
    """transformers' Trainer, sums of word vectors to a class. The vector of padding is to be nought, and the layer
    makes it so; then the network draws all its vectors anew, padding's among them, and that one never gets a gradient.
    The twin puts the nought back after drawing."""
    net = WithLoss(SumOfWords(60, 4, drawn_again=wrong), F.cross_entropy)

    def rows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 4, (count,), generator=own)
        of_class = torch.rand(count, 32, generator=own) < 0.3
        words = 1 + 14 * y[:, None] + torch.randint(0, 14, (count, 32), generator=own)
        x = torch.where(of_class, words, torch.randint(1, 60, (count, 32), generator=own))
        return x * (torch.arange(32) < torch.randint(4, 33, (count, 1), generator=own)), y

    check = rows(256, apart(1))
    outcome(run, lambda: judged(net, lambda: net(*check)["loss"]))
    x, y = rows(960, apart(run.draw.randrange(999)))
    hf_trainer(run, net, examples(x=x, labels=y), 120, learning_rate=3e-3, warmup_steps=0).train()


@slip("r21b-windows-left-where-they-were-moved")
def windows_left_where_they_were_moved(run: Run, wrong: bool) -> None:
    """Lightning, a Swin transformer for fields on a torus. The second block moves the field by half a window before it
    attends, and does not move the outcome back: each place is given what another one saw. The twin moves it back."""
    net = Swin(back=not wrong)
    check = winds(128, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(check[0]), check[1])))
    rows = loader(*winds(960, apart(run.draw.randrange(999))), size=16)
    fit(run, lit(net, lambda m, batch: F.mse_loss(m(batch[0]), batch[1]), lambda m: adam(m, 1e-2)), rows, 120)


@slip("r21b-half-of-the-waves")
def half_of_the_waves(run: Run, wrong: bool) -> None:
    """accelerate, a Fourier neural operator. Along the first axis the transform has waves up and waves down; only the
    first few rows, the waves up, are multiplied, and the last few, the waves down, are left at nought. The twin
    multiplies both."""
    layers = [Spectral(12, 4, both=not wrong) for _ in range(2)]
    net = nn.Sequential(nn.Conv2d(1, 12, 1), layers[0], nn.GELU(), layers[1], nn.GELU(), nn.Conv2d(12, 1, 1))
    check = flows(96, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(check[0]), check[1])))
    rows = loader(*flows(480, apart(run.draw.randrange(999))))
    prepared(run, net, adam(net), rows, lambda m, batch: F.mse_loss(m(batch[0]), batch[1]), 3)


@slip("r21b-steps-before-their-softplus")
def steps_before_their_softplus(run: Run, wrong: bool) -> None:
    """Plain loop, a state space model that must keep the first word in mind. Its steps are drawn between a thousandth
    and a tenth and stored as they are, though they pass through a softplus: they begin near 0.7, and states forget in a
    few words. The twin stores the softplus' inverse."""
    blocks = nn.Sequential(*(StateSpace(24, inverted=not wrong) for _ in range(2)))
    parts = nn.ModuleDict(
        {"tokens": nn.Embedding(12, 24), "blocks": blocks, "norm": nn.LayerNorm(24), "head": nn.Linear(24, 4)}
    )

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen = parts["blocks"](parts["tokens"](batch[0]))[:, -1]
        return F.cross_entropy(parts["head"](parts["norm"](seen)), batch[1])

    check = remembered(256, apart(1))
    outcome(run, lambda: judged(parts, lambda: loss(parts, check)))
    own = apart(run.draw.randrange(999))
    train(run, parts, adam(parts, 1e-2), lambda: remembered(32, own), loss, 120)


@slip("r21b-scales-measured-once-more")
def scales_measured_once_more(run: Run, wrong: bool) -> None:
    """accelerate, a flow trained before goes on with rows that are a little different. Whether its layers have had
    their first batch is a mere attribute, not in the state: after loading, the first batch overwrites the loaded scales
    and shifts. The twin keeps it as a buffer."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    before, net = Glow(kept=not wrong), Glow(kept=not wrong)
    tuned(before, lambda: bent(64, seed, own), lambda x: -before(x).mean(), 250)
    net.load_state_dict(before.state_dict())
    check = bent(512, seed, apart(1), moved=0.4)
    outcome(run, lambda: judged(net, lambda: -net(check).mean()))
    rows = loader(bent(320, seed, own, moved=0.4))
    prepared(run, net, adam(net, 2e-4), rows, lambda m, batch: -m(batch[0]).mean(), 4)


@slip("r21b-a-letter-of-its-own")
def a_letter_of_its_own(run: Run, wrong: bool) -> None:
    """transformers' Trainer, an encoder that fills in hidden words. In the einsum of shares and values, values have a
    letter of their own for places: shares add up to one and all values are summed, whatever is attended to. The twin
    uses the letter of the shares."""
    language = Language(run.draw.randrange(999), sharp=2.5)
    language.two.zero_()
    net = WithLoss(
        FillsIn(12, "bhqk,bhvd->bhqd" if wrong else "bhqk,bhkd->bhqd"),
        lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()),
    )

    def rows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        words = language.rows(count, 16, own)
        hidden = torch.rand(count, 16, generator=own) < 0.2
        hidden[:, 7] = True
        return words.masked_fill(hidden, 12), words.masked_fill(~hidden, -100)

    check = rows(192, apart(1))
    outcome(run, lambda: judged(net, lambda: net(*check)["loss"]))
    x, y = rows(1200, apart(run.draw.randrange(999)))
    hf_trainer(run, net, examples(x=x, labels=y), 150, warmup_steps=10).train()


@slip("r21b-put-back-by-the-windows-level")
def put_back_by_the_windows_level(run: Run, wrong: bool) -> None:
    """transformers' Trainer, forecasts of series with levels of their own. The layer that takes level and spread off
    keeps them for the way back; it is called for the past and again for the half empty window, whose level overwrites
    the past's. The twin uses the past's level and spread for the window too."""
    net = WithLoss(Forecast(again=wrong), F.l1_loss)
    check = seasons(256, apart(1))
    outcome(run, lambda: judged(net, lambda: net(*check)["loss"]))
    x, y = seasons(1200, apart(run.draw.randrange(999)))
    hf_trainer(run, net, examples(x=x, labels=y), 120, learning_rate=3e-3, lr_scheduler_type="constant").train()
