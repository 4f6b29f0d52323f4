"""A public issue about the normalisation of a policy loss."""

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import Chats, Decoder, batch_of, outcome, shifted
from torch import Tensor, nn

FAMILY = "public issues: policies"


def tuned(seed: int, dropout: float = 0.0, steps: int = 70) -> tuple[Decoder, Chats]:
    """Supervised training first, unwatched, with answers that are right two times in three."""
    chats = Chats(seed, 3, 6)
    model = Decoder(Chats.VOCABULARY, rotary=True, dropout=dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        ids, mask, labels = batch_of(
            [(p, worse(chats, a) if chats.draw.random() < 0.33 else a) for p, a in chats.some(8)]
        )
        optimizer.zero_grad()
        shifted(model(ids, mask), labels).backward()
        optimizer.step()
    return model, chats


def worse(chats: Chats, answer: list[int]) -> list[int]:
    """The answer with some letters wrong."""
    return [chats.draw.choice(chats.letters) if c > 4 and chats.draw.random() < 0.4 else c for c in answer]


@torch.no_grad()
def sampled(model: nn.Module, prompt: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Completions until an end or the limit, and the mask of what was generated, ends included."""
    ids = prompt
    alive = torch.ones(len(ids), dtype=torch.bool)
    masks = []
    for _ in range(length):
        following = torch.multinomial(model(ids)[:, -1].softmax(-1), 1).squeeze(1).masked_fill(~alive, Chats.PAD)
        masks.append(alive)
        ids = torch.cat([ids, following[:, None]], 1)
        alive = alive & (following != Chats.EOS)
    return ids, torch.stack(masks, 1).long()


@fault("issue-trl-6439", FAMILY, (r"truncat|mask|count|token", r"denominator|normali[sz]|divid|divisor|dilut|scaled"))
def truncated_in_denominator(run: Run, slip: bool) -> None:
    """huggingface/trl pull request 6439 (issue 6369): completions cut off at the length limit were left out of the sum
    of a token-normalised GRPO loss but still counted in its denominator, so losses and gradients were diluted by as
    much as had been cut. SGD, groups of eight; the outcome is how far the divisor is from the tokens summed."""
    model, chats = tuned(run.draw.randrange(1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    doctor = run.watch(model, optimizer)
    off: list[float] = []
    outcome(run, lambda: sum(off) / len(off))
    for _ in range(35):
        prompt, answer = chats.one()
        start = torch.tensor([prompt]).expand(16, -1)
        ids, mask = sampled(model, start, 6)
        completions = ids[:, len(prompt) :]
        right = torch.tensor(answer[:6] + [0] * max(0, 6 - len(answer)))
        rewards = ((completions == right) & (mask == 1)).float().mean(1)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        raw = int(mask.sum())
        finished = ((completions == Chats.EOS) & (mask == 1)).any(1)
        mask = mask * finished[:, None]
        counted = int(mask.sum())
        logs = model(ids)[:, len(prompt) - 1 : -1].log_softmax(-1).gather(-1, completions[..., None]).squeeze(-1)
        ratio = (logs - logs.detach()).exp()
        loss = -(ratio * advantages[:, None] * mask).sum() / max(1, raw if slip else counted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "completion_mask": mask, "advantages": advantages})
        run.note(loss)
        if counted:
            off.append((raw if slip else counted) / counted - 1)
