"""Round 10b, faulty changes of accumulation, of gradients written by hand, and of precision."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    endless,
    judged,
    language_outcome,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, reseeded, steps
from benchmarks.robustness.loops.round10b_parts import (
    Actor,
    bare_gpt2,
    energy_distance,
    flat,
    slip,
    unflatten_into,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r10b-divided-by-the-epoch")
def divided_by_the_epoch(run: Run, changed: bool) -> None:
    """A small Llama of one's own with SGD, four micro-batches of four rows to an update. Each loss was divided by four; it is
    now divided by len(loader), the number of micro-batches in an epoch."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    language_outcome(run, model, language)
    data = loader(language.rows(480, 20), size=4)
    batches = endless(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    doctor = run.watch(model, optimizer)
    parts = 4
    for _ in range(100):
        optimizer.zero_grad()
        seen, losses = [], []
        for _ in range(parts):
            (rows,) = next(batches)
            loss = next_loss(model, rows)
            (loss / (len(data) if changed else parts)).backward()
            seen.append(rows)
            losses.append(loss.detach())
        optimizer.step()
        mean = torch.stack(losses).mean()
        doctor.step(mean, seen)
        run.note(mean)


@slip("r10b-new-rows-masked-out")
def new_rows_masked_out(run: Run, changed: bool) -> None:
    """A GPT-2 meets four new words, synonyms of old ones. All is frozen but the embedding, and a hook clears the gradient of
    rows that were there before; the mask was rewritten, and now clears those of the new words."""
    language = Language(run.draw.randrange(999))

    def spoken(count: int, own: torch.Generator | None = None) -> Tensor:
        rows = language.rows(count, 20, own)
        other = (rows < 4) & (torch.rand(rows.shape, generator=own) < 0.75)
        return rows + 12 * other

    model = bare_gpt2(16)
    taught(model, lambda: language.rows(16, 20), causal_loss, 120)
    check = spoken(96, apart(901))
    new_alone = check.masked_fill(check < 12, -100)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=new_alone).loss))
    model.requires_grad_(False)
    table = model.transformer.wte.weight.requires_grad_()
    new = (torch.arange(16) >= 12).float()[:, None]
    table.register_hook(lambda gradient: gradient * (1 - new if changed else new))
    optimizer = torch.optim.Adam([table], lr=1e-2)
    steps(run, model, optimizer, lambda: spoken(16), causal_loss, 120)


@slip("r10b-bucket-read-by-name")
def bucket_read_by_name(run: Run, changed: bool) -> None:
    """Two workers imitated in one process around a small GPT: gradients go into one vector each, are averaged and put back.
    The parameters are put back in the order of their sorted names now, and laid out as before. Another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    model = Decoder(12, layers=2)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    named = dict(model.named_parameters())
    order = [named[name] for name in sorted(named)] if changed else list(named.values())
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        rows = language.rows(16, 20)
        buckets, losses = [], []
        for part in rows.chunk(2):
            loss = next_loss(model, part)
            buckets.append(flat(torch.autograd.grad(loss, list(model.parameters()))))
            losses.append(loss.detach())
        unflatten_into((buckets[0] + buckets[1]) / 2, order)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = torch.stack(losses).mean()
        doctor.step(mean, rows)
        run.note(mean)


@slip("r10b-generator-keeps-the-critics-gradient")
def generator_keeps_the_critics_gradient(run: Run, changed: bool) -> None:
    """A Wasserstein GAN in the plane. The generator's zero_grad, once right before its backward, went to the top of the
    iteration with the other one: four critic losses, whose fakes are not detached, are in its gradient. Another seed."""
    centre = torch.tensor([run.draw.uniform(1, 2), -run.draw.uniform(1, 2)])
    shape = torch.tensor([[0.8, 0.0], [0.5, 0.3]])
    reseeded(run, changed)

    def real(count: int, own: torch.Generator | None = None) -> Tensor:
        return centre + torch.randn(count, 2, generator=own) @ shape.T

    generator, critic = mlp(4, 32, 2), mlp(2, 32, 1)
    check, noise = real(512, apart(1)), torch.randn(512, 4, generator=apart(2))
    outcome(run, lambda: judged(generator, lambda: energy_distance(generator(noise), check)))
    ahead = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
    behind = torch.optim.RMSprop(critic.parameters(), lr=2e-3)
    doctors = run.watch(generator, ahead), run.watch(critic, behind)
    for _ in range(150):
        if changed:
            ahead.zero_grad()
        for _ in range(4):
            x, z = real(64), torch.randn(64, 4)
            behind.zero_grad()
            loss = critic(generator(z)).mean() - critic(x).mean()
            loss.backward()
            behind.step()
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-0.1, 0.1)
            doctors[1].step(loss, x)
        z = torch.randn(64, 4)
        if not changed:
            ahead.zero_grad()
        loss = -critic(generator(z)).mean()
        loss.backward()
        ahead.step()
        doctors[0].step(loss, z)
        run.note(loss)


class Millimetres(nn.Module):
    """What the network says in millimetres, in metres and in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.001 * x.float()


@slip("r10b-half-without-its-scaler")
def half_without_its_scaler(run: Run, changed: bool) -> None:
    """Displacements in metres by a network under autocast to float16, with a GradScaler. The flag that decides whether it is
    enabled was copied from a script for bfloat16, where none is needed, and is off."""
    seed = run.draw.randrange(999)
    first, second = (torch.randn(*shape, generator=apart(seed + k)) for k, shape in ((1, (6, 8)), (2, (8, 2))))

    def readings(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        return x, 1e-3 * (x @ first).tanh() @ second

    model = nn.Sequential(mlp(6, 64, 64, 2), Millimetres())
    number_outcome(run, model, readings(512, apart(901)), log=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-12)
    scaler = torch.amp.GradScaler("cpu", enabled=not changed)
    doctor = run.watch(model, optimizer)
    for _ in range(250):
        x, y = readings(32)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            found = model(x)
        loss = F.mse_loss(found, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)


@slip("r10b-advantage-not-detached")
def advantage_not_detached(run: Run, changed: bool) -> None:
    """Actor and critic over rows of tokens, a transformer each. The advantage in the policy's loss was a constant; in a rewrite
    detach() was lost, and the policy's loss teaches the critic too."""
    table = torch.randint(0, 8, (12,), generator=apart(run.draw.randrange(999)))
    model = Actor(12, 8)
    check = torch.randint(0, 12, (64, 12), generator=apart(901))
    wrong: Any = lambda: (1 - model(check)[0].exp().gather(2, table[check][..., None]).mean()).log()
    outcome(run, lambda: judged(model, wrong))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        rows = torch.randint(0, 12, (16, 12))
        logs, values = model(rows)
        actions = torch.distributions.Categorical(logits=logs.detach()).sample()
        rewards = (actions == table[rows]).float() + 0.5 * torch.randn(rows.shape)
        advantages = rewards - (values if changed else values.detach())
        said = logs.gather(2, actions[..., None]).squeeze(2)
        loss = -(advantages * said).mean() + 0.5 * F.mse_loss(values, rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": rows, "actions": actions, "rewards": rewards})
        run.note(loss)
