"""Round 13b, honest and odd: preferences, rewards, and models that are trained against or beside others."""

import copy
import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import spelled, trl_trainer, word_tokenizer
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    hf_arguments,
    judged,
    mlp,
    outcome,
    tiny_gpt2,
    watching,
)
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, llama
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r13b-compared-with-its-own-best-guess")
def compared_with_its_own_best_guess(run: Run) -> None:
    """A GPT that is to say a row of words in falling order, by self-critical training as for captions (Rennie et al.
    2017). The baseline of each sampled answer is the reward of the model's own greedy answer to the same prompt: where
    both are equal there is no gradient, the loss has no direction and its mean is about zero from the first step to the
    last."""
    model = Decoder(12, length=12)
    pairs = Language(run.draw.randrange(999), sharp=0.6)
    taught(model, lambda: pairs.rows(16, 8), lambda m, r: F.cross_entropy(m(r[:, :-1]).mT, r[:, 1:]), 20)

    def answered(rows: Tensor, greedy: bool) -> Tensor:
        with torch.no_grad():
            for _ in range(6):
                logits = model(rows)[:, -1]
                word = logits.argmax(1) if greedy else torch.multinomial(logits.softmax(1), 1)[:, 0]
                rows = torch.cat([rows, word[:, None]], 1)
        return rows

    def reward(rows: Tensor) -> Tensor:
        return (rows[:, 3:] < rows[:, 2:-1]).float().mean(1)

    check = torch.randint(0, 12, (96, 2), generator=apart(1))
    check = torch.cat([check, torch.full((96, 1), 11)], 1)
    outcome(run, lambda: judged(model, lambda: 1 - reward(answered(check, True)).mean()))
    optimizer = adam(model, 2e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        prompts = torch.cat([torch.randint(0, 12, (32, 2)), torch.full((32, 1), 11)], 1)
        rows, best = answered(prompts, False), answered(prompts, True)
        gain = reward(rows) - reward(best)
        logs = model(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None])[:, 2:, 0].sum(1)
        loss = -(gain * logs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r13b-good-and-bad-without-pairs")
def good_and_bad_without_pairs(run: Run) -> None:
    """TRL's KTOTrainer, GPT-2. Answers are not paired, each is marked good or bad, and three in four are bad, so that
    the good ones weigh three times as much. The loss begins at three quarters, whatever the model is, and each answer
    is compared with a divergence that is estimated from prompts with the answers of others and is cut at zero."""
    import datasets
    import transformers
    import trl

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    language, model = Language(run.draw.randrange(999), first=4), tiny_gpt2()
    taught(model, lambda: language.rows(12, 8), causal_loss, 30)

    def answer(good: bool, own: torch.Generator | None = None) -> Tensor:
        prompt = torch.randint(4, 16, (5,), generator=own)
        return torch.cat([prompt, prompt[-1:].repeat(3) if good else torch.randint(4, 16, (3,), generator=own)])

    own = apart(1)
    held = [torch.stack([answer(good, own) for _ in range(96)]) for good in (True, False)]

    def apart_by() -> Tensor:
        logs = [model(input_ids=rows).logits[:, 4:-1].log_softmax(-1) for rows in held]
        good, bad = (a.gather(2, r[:, 5:, None]).sum((1, 2)) for a, r in zip(logs, held, strict=True))
        return -F.logsigmoid(0.3 * (good - bad)).mean()

    outcome(run, lambda: judged(model, apart_by))
    marks = [i % 4 == 0 for i in range(160)]
    rows = [
        {"prompt": spelled(r[:5]), "completion": " " + spelled(r[5:]), "label": mark}
        for mark in marks
        for r in [answer(mark)]
    ]
    told, telling = watching(run, trl.KTOTrainer)
    settings: dict[str, Any] = {"desirable_weight": 3.0, "beta": 0.5, "gradient_checkpointing": False, "bf16": False}
    arguments = hf_arguments(run, 30, trl.KTOConfig, **settings, learning_rate=2e-3)
    more = {"train_dataset": datasets.Dataset.from_list(rows), "processing_class": word_tokenizer(16)}
    trainer = told(model=model, ref_model=copy.deepcopy(model), args=arguments, **more)
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


@honest("r13b-weighed-by-its-own-belief")
def weighed_by_its_own_belief(run: Run) -> None:
    """TRL's SFTTrainer on a Llama with loss_type="dft" (Wu et al. 2025). Each token's loss is multiplied by the
    probability that the model gives it, without a gradient: what it deems unlikely teaches least, and the loss is small
    from the first step, since p times -log p is small at both ends. It is for models that half know the answers, as
    this one does."""
    key = torch.randperm(12, generator=apart(run.draw.randrange(999))) + 4

    def row(own: torch.Generator | None = None) -> Tensor:
        asked = torch.randint(4, 16, (5,), generator=own)
        return torch.cat([asked, key[asked[-1:] - 4], key[asked[-2:-1] - 4]])

    model, own = llama(16), apart(1)

    def published() -> dict[str, Tensor]:
        ids = torch.stack([torch.cat([row(), torch.tensor([2])]) for _ in range(24)])
        return {"input_ids": ids, "labels": torch.where(torch.arange(8) < 5, -100, ids)}

    taught(model, published, lambda m, b: m(**b).loss, 90)
    check = torch.stack([row(own) for _ in range(96)])

    def wrong() -> Tensor:
        chances = model(input_ids=check).logits[:, 4:-1].softmax(-1)
        return 1 - chances.gather(2, check[:, 5:, None]).mean()

    outcome(run, lambda: judged(model, wrong))
    rows = [{"prompt": spelled(r[:5]), "completion": " " + spelled(r[5:])} for r in (row() for _ in range(320))]
    settings = {"completion_only_loss": True, "learning_rate": 5e-3, "per_device_train_batch_size": 16}
    trl_trainer(run, "SFT", model, rows, 60, loss_type="dft", **settings).train()


def rings(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points of the plane about four corners."""
    corners = 2.0 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    return corners[torch.randint(0, 4, (count,), generator=own)] + 0.2 * torch.randn(count, 2, generator=own)


@honest("r13b-critic-cut-to-a-box")
def critic_cut_to_a_box(run: Run) -> None:
    """The first Wasserstein GAN (Arjovsky et al. 2017): RMSprop, because momentum harms, five updates of the critic for
    one of the generator, and after each all weights of the critic are cut to within 0.1 of zero, so that many of them
    stand at one end or the other. Losses are differences of scores without a floor."""
    maker, critic = mlp(4, 48, 48, 2), mlp(2, 48, 48, 1, act=nn.LeakyReLU)
    real, drawn = rings(256, apart(1)), torch.randn(256, 4, generator=apart(2))

    def energy() -> Tensor:
        """The energy distance between points and samples."""
        made = maker(drawn)
        return 2 * torch.cdist(real, made).mean() - torch.cdist(real, real).mean() - torch.cdist(made, made).mean()

    outcome(run, lambda: judged(maker, energy))
    for_maker = torch.optim.RMSprop(maker.parameters(), lr=1e-3)
    for_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    first, second = run.watch(maker, for_maker), run.watch(critic, for_critic)
    for _ in range(160):
        for _ in range(5):
            batch, noise = rings(48), torch.randn(48, 4)
            for_critic.zero_grad()
            loss = critic(maker(noise).detach()).mean() - critic(batch).mean()
            loss.backward()
            for_critic.step()
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-0.1, 0.1)
            second.step(loss, batch)
            run.note(loss)
        noise = torch.randn(48, 4)
        for_maker.zero_grad()
        loss = -critic(maker(noise)).mean()
        loss.backward()
        for_maker.step()
        first.step(loss, noise)
        run.note(loss)


class Boltzmann(nn.Module):
    """A restricted Boltzmann machine of 16 seen and 8 hidden bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(16, 8))
        self.seen, self.hidden = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.zeros(8))

    def up(self, v: Tensor) -> Tensor:
        return (v @ self.weight + self.hidden).sigmoid()

    def down(self, h: Tensor) -> Tensor:
        return (h @ self.weight.T + self.seen).sigmoid()

    def surprise(self, v: Tensor) -> Tensor:
        """The mean negative log likelihood, exactly, by all 256 hidden states."""
        states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=8)))
        whole = (states @ self.hidden + F.softplus(states @ self.weight.T + self.seen).sum(1)).logsumexp(0)
        return whole - (v @ self.seen + F.softplus(v @ self.weight + self.hidden).sum(1)).mean()


@honest("r13b-moments-of-data-less-those-of-dreams")
def moments_of_data_less_those_of_dreams(run: Run) -> None:
    """A restricted Boltzmann machine with contrastive divergence and persistent chains. No loss is differentiated and
    nothing has a graph: `.grad` is written by hand as the moments of the model's own samples less those of the data,
    plain SGD with momentum applies it, and what is told is the error of a reconstruction, which is not what is
    minimised."""
    model = Boltzmann()
    shapes = (torch.rand(5, 16, generator=apart(run.draw.randrange(999))) < 0.5).float()

    def bits(count: int, own: torch.Generator | None = None) -> Tensor:
        clean = shapes[torch.randint(0, 5, (count,), generator=own)]
        return (clean - (torch.rand(clean.shape, generator=own) < 0.05).float()).abs()

    check = bits(200, apart(1))
    outcome(run, lambda: judged(model, lambda: model.surprise(check)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    doctor = run.watch(model, optimizer)
    dream = torch.rand(40, 16).round()
    for _ in range(250):
        v = bits(40)
        with torch.no_grad():
            h = model.up(v)
            error = (v - model.down(h.bernoulli())).square().mean()
            for _ in range(2):
                dream = model.down(model.up(dream).bernoulli()).bernoulli()
            g = model.up(dream)
            model.weight.grad = (dream.T @ g - v.T @ h) / 40
            model.seen.grad, model.hidden.grad = (dream - v).mean(0), (g - h).mean(0)
        optimizer.step()
        doctor.step(error, v)
        run.note(error)
