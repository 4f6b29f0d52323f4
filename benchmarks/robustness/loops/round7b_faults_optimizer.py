"""Round 7b, mistakes of the optimizer, its schedule and its clipping."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    fit,
    judged,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    straight,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, regress
from benchmarks.robustness.loops.round7b_parts import Listener, Reader, Translator, TwoHeads, sounds
from benchmarks.robustness.loops.round7b_tools import OPTIMIZER, adam, text_outcome
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r7-warmup-overwrites-the-cosine",
    OPTIMIZER,
    (
        r"rate|lr\b|schedul",
        r"(two|second|both|other|another) schedul|overw|set (again|back|by)|not (follow|fall|decay|what|as the schedul)|never (fall|decay)|constant|disagree|no effect|without effect|ignor|stays at",
    ),
)
def warmup_overwrites_the_cosine(run: Run, wrong: bool) -> None:
    """Two schedules are stepped one after the other: a cosine, then a LambdaLR for the warmup, which sets the rate to its
    own factor, 1 after ten steps, so that the cosine never shows. The twin has a SequentialLR of both."""
    language = Language(run.draw.randrange(999))
    model = Reader(12)
    text_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-2)
    kinds = torch.optim.lr_scheduler
    warm = kinds.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    cosine: Any = kinds.CosineAnnealingLR(optimizer, 240)
    if not wrong:
        cosine = kinds.SequentialLR(optimizer, [warm, kinds.CosineAnnealingLR(optimizer, 240)], [10])
    doctor = run.watch(model, optimizer, scheduler=cosine)
    for _ in range(250):
        rows = language.rows(4, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        cosine.step()
        if wrong:
            warm.step()
        run.note(loss)


@fault(
    "r7-one-of-two-optimizers-never-steps",
    OPTIMIZER,
    (
        r"encoder|optimizer|parameters|weights|layer",
        r"never (step|move|updat|chang|train)|not (step|move|updat|chang|train|learn)|no(t)? .{0,20}update|do(es)? not move|stand|still|unchanged|frozen|without (a |any )?(step|update)|no step|forgot",
    ),
)
def one_of_two_optimizers_never_steps(run: Run, wrong: bool) -> None:
    """Encoder and decoder have an optimizer each, as in an old tutorial. Both are cleared, the decoder's is stepped; the
    encoder's step() was lost, and it stays as it was drawn. The task is to say a row backwards."""
    model = Translator(10)
    start = torch.full((512, 1), 10)

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        source = torch.randint(0, 10, (count, 6), generator=own)
        target = source.flip(1)
        return source, torch.cat([start[:count], target[:, :-1]], 1), target

    def loss_of(batch: Any) -> Tensor:
        return F.cross_entropy(model(*batch[:2]).flatten(0, 1), batch[2].flatten())

    check = pairs(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss_of(check)))
    encoding = adam(model.encoder, 1e-2)
    decoding = torch.optim.Adam([*model.decoder.parameters(), *model.head.parameters()], lr=1e-2)
    doctor = run.watch(model, [encoding, decoding])
    for _ in range(150):
        batch = pairs(48)
        encoding.zero_grad()
        decoding.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        if not wrong:
            encoding.step()
        decoding.step()
        doctor.step(loss, batch)
        run.note(loss)


@fault(
    "r7-rate-set-on-the-object",
    OPTIMIZER,
    (
        r"rate|lr\b|step size",
        r"constant|never|no effect|attribute|not (chang|fall|cut|reach|decay|lower)|param_groups|stays|too (high|large|big)|noise|jump|oscillat|unstable|bounc",
    ),
)
def rate_set_on_the_object(run: Run, wrong: bool) -> None:
    """Lightning, convolutions over sounds. From epoch to epoch the rate should be cut, `optimizer.lr = rate`, which only
    makes an attribute that nobody reads. The twin sets it in param_groups."""
    import lightning

    class Cutting(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Listener()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return classify(self.net, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net.parameters(), lr=0.5, momentum=0.9)

        def on_train_epoch_start(self) -> None:
            optimizer: Any = self.trainer.optimizers[0]
            rate = 0.5 * 0.3**self.current_epoch
            if wrong:
                optimizer.lr = rate
            else:
                for group in optimizer.param_groups:
                    group["lr"] = rate

    module = Cutting()
    check = sounds(384, apart(1))
    outcome(run, lambda: judged(module.net, lambda: classify(module.net, check)))
    fit(run, module, loader(*sounds(320), size=8), 200)


@fault(
    "r7-frozen-but-still-moved",
    OPTIMIZER,
    (
        r"frozen|freez|requires_grad|not require",
        r"momentum|decay|drift|still|set_to_none|zero gradient|gradient.{0,30}zero|mov|chang|updat",
    ),
)
def frozen_but_still_moved(run: Run, wrong: bool) -> None:
    """After sixty steps the body and the first head are frozen with requires_grad = False, to add a second language. But
    zero_grad(set_to_none=False) leaves them gradients of zero, and AdamW goes on: by its momentum, by its decay. The
    measure is the first language's loss. The twin has gradients of None."""
    one, two = Language(run.draw.randrange(999)), Language(run.draw.randrange(999))
    model = TwoHeads()
    check = one.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: model.loss(check, False)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.3)
    doctor = run.watch(model, optimizer)
    for step in range(160):
        second = step >= 60
        if step == 60:
            for part in (model.body, model.first):
                part.requires_grad_(False)
        rows = (two if second else one).rows(12, 24)
        optimizer.zero_grad(set_to_none=not wrong)
        loss = model.loss(rows, second)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@fault(
    "r7-range-test-not-undone",
    OPTIMIZER,
    (
        r"rate|lr\b|weight|loss|range|diverg|explo|logits|update|model",
        r"range|too (high|large)|rais|grow|grew|rose|explo|diverg|jump|not (restor|reset|put back)|damag|destroy|large|blew|blow|spike|saturat|one.hot",
    ),
)
def range_test_not_undone(run: Run, wrong: bool) -> None:
    """A rate is looked for: it grows by a third at each step until the loss has doubled. The training begins at a good
    rate, but with the weights and moments that the search has left. The twin puts both back."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check).log()))
    optimizer = adam(model, 1e-4)
    doctor = run.watch(model, optimizer)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def step() -> float:
        rows = language.rows(12, 20)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)
        return float(loss.detach())

    rate, first, now = 1e-4, 0.0, 0.0
    while rate < 20 and now <= 2 * first:
        optimizer.param_groups[0]["lr"] = rate
        now = step()
        first = first or now
        rate *= 1.33
    if not wrong:
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
    optimizer.param_groups[0]["lr"] = 4e-3
    for _ in range(90):
        step()


@fault(
    "r7-penalty-of-data",
    OPTIMIZER,
    (
        r"penalt|regulari|loss|decay|gradient",
        r"\.data|detach|no gradient|without (a )?gradient|not differentia|not (in|part of) the gradient|no effect|(does|do) not (agree|match|fit|belong)|other than|not the gradient|not that of|no_grad",
    ),
)
def penalty_of_data(run: Run, wrong: bool) -> None:
    """A table of forty noisy rows. The loss has an L2 penalty, summed over `p.data.square()`: its value is there, but it has
    no gradient, and the network learns the noise. The twin takes p itself."""
    seed = run.draw.randrange(999)
    model = mlp(6, 64, 64, 1)
    number_outcome(run, model, straight(400, seed, apart(1), 1.0))
    x, y = straight(40, seed, noise=1.0)

    def loss(m: nn.Module, b: Any) -> Tensor:
        penalty = sum(((p.data if wrong else p).square().sum() for p in m.parameters()), torch.zeros(()))
        return regress(m, b) + 0.03 * penalty

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, 40, (20,))
        return x[rows], y[rows]

    train(run, model, adam(model), batch, loss, 200)


@fault(
    "r7-clipped-together-with-the-critic",
    OPTIMIZER,
    (
        r"clip",
        r"critic|value|one part|part of|together|dominat|outweigh|every step|always|all steps|share|nothing|scale of|actor|policy",
    ),
)
def clipped_together_with_the_critic(run: Run, wrong: bool) -> None:
    """An actor and a critic of rewards around 20. Their gradients are clipped to 0.5 together: the critic's norm is in the
    tens, and the actor is left with a hundredth of its own. The twin clips each by itself."""
    own = apart(run.draw.randrange(999))
    weights = torch.randn(6, 5, generator=own)
    model = nn.ModuleDict({"actor": mlp(6, 32, 5, act=nn.Tanh), "critic": mlp(6, 32, 1, act=nn.Tanh)})
    x = torch.randn(512, 6, generator=apart(1))
    best = (x @ weights).max(1).values

    def regret() -> Tensor:
        return (best - (model["actor"](x).softmax(1) * (x @ weights)).sum(1)).mean()

    outcome(run, lambda: judged(model, regret))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    doctor = run.watch(model, optimizer)
    for _ in range(180):
        s = torch.randn(64, 6)
        policy = torch.distributions.Categorical(logits=model["actor"](s))
        a = policy.sample()
        reward = 20 + 4 * ((s @ weights).gather(1, a[:, None]).squeeze(1) + 0.3 * torch.randn(64))
        value = model["critic"](s).squeeze(1)
        gain = reward - value.detach()
        gain = (gain - gain.mean()) / gain.std()
        loss = -(policy.log_prob(a) * gain).mean() + 0.5 * F.mse_loss(value, reward)
        optimizer.zero_grad()
        loss.backward()
        for part in (model,) if wrong else model.values():
            nn.utils.clip_grad_norm_(part.parameters(), 0.5)
        optimizer.step()
        doctor.step(loss, {"states": s, "actions": a, "rewards": reward})
        run.note(loss)
