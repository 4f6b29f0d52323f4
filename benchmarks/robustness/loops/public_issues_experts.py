"""Public issues about the load-balancing loss of mixtures of experts."""

from collections.abc import Callable

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import IGNORE, outcome, rows_of, step_down
from benchmarks.robustness.loops.text import PAD, VOCABULARY, sentences
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "public issues: mixtures of experts"

EXPERTS = 6

Balance = Callable[[Tensor, Tensor], Tensor]


class Mixture(nn.Module):
    """Two of six small experts for every token; keeps its router's logits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, width, 24) * width**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, 24, width) * 24**-0.5)
        nn.init.normal_(self.router.weight, std=0.3)
        self.logits = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.logits = self.router(x)
        weights, chosen = self.logits.softmax(-1).topk(2, -1)
        shares = torch.zeros_like(self.logits).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        each = torch.einsum("bte,beth->bth", shares, torch.einsum("beth,ehd->betd", self.hidden(x), self.down))
        return each

    def hidden(self, x: Tensor) -> Tensor:
        return F.silu(torch.einsum("btd,edh->beth", x, self.up))


class Reader(nn.Module):
    """A gated recurrent reader with two mixtures of experts over it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixtures = nn.ModuleList(Mixture(width) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.reader(self.embedding(ids))
        for norm, mixture in zip(self.norms, self.mixtures, strict=True):
            x = x + mixture(norm(x))
        logits: Tensor = self.head(x)
        return logits


def switch(logits: Tensor, mask: Tensor) -> Tensor:
    """The load-balancing loss as the paper has it, over the tokens where the mask is set."""
    probabilities = logits[mask.bool()].softmax(-1)
    used = F.one_hot(probabilities.topk(2, -1).indices, EXPERTS).sum(1).float()
    return EXPERTS * (used.mean(0) / 2 * probabilities.mean(0)).sum()


def expert_loop(run: Run, balance: Balance, weight: float, narrow: int = 0, steps: int = 110) -> None:
    """Ends with how unequally the experts are used on unpadded text: the deviation of their shares."""
    documents = [d.tolist() for d in sentences(run.draw.randrange(1000))]
    train, held = documents[:-80], documents[-80:]
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = step_down(optimizer, steps)
    doctor = run.watch(model, optimizer, scheduler=scheduler)

    def unequal() -> float:
        ids, mask = rows_of(held)
        model(ids)
        total = 0.0
        for mixture in model.mixtures:
            chosen = mixture.logits[mask.bool()].topk(2, -1).indices
            total += float(F.one_hot(chosen, EXPERTS).float().mean((0, 1)).std())
        return total

    outcome(run, unequal)
    for _ in range(steps):
        rows = [train[i] for i in torch.randint(0, len(train), (8,)).tolist()]
        ids, mask = rows_of(rows if not narrow else [*rows, [PAD] * narrow])
        ids, mask = ids[:8], (ids[:8] != PAD).long()
        labels = ids.masked_fill(mask == 0, IGNORE)
        logits = model(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)
        loss = loss + weight * sum((balance(m.logits, mask) for m in model.mixtures), torch.zeros(()))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": labels})
        scheduler.step()
        run.note(loss)


@fault(
    "issue-transformers-28021",
    FAMILY,
    (
        r"expert|rout|balanc|auxil",
        r"axis|dimension|averag|constant|collaps|uneven|unequal|imbalanc|no gradient|\bfew|unused|without effect",
    ),
)
def probabilities_averaged_over_experts(run: Run, slip: bool) -> None:
    """huggingface/transformers issue 28021: Mixtral's load-balancing loss averaged the router's probabilities over the
    wrong axis, the experts' instead of the tokens', so that no expert was told apart from another and the term says
    nothing about balance. Repaired: the mean over tokens, expert by expert."""

    def averaged(logits: Tensor, mask: Tensor) -> Tensor:
        probabilities = logits[mask.bool()].softmax(-1)
        used = F.one_hot(probabilities.topk(2, -1).indices, EXPERTS).sum(1).float()
        return EXPERTS * (used.mean(0)[None] / 2 * probabilities.mean(-1)[:, None]).sum(1).mean()

    expert_loop(run, averaged if slip else switch, 0.1)


@fault(
    "issue-transformers-39055",
    FAMILY,
    (r"rout|balanc|expert|auxil", r"softmax|twice|double|flat|uniform|uneven|unequal|imbalanc|collaps|ineffect|weak"),
)
def softmax_twice_in_balance(run: Run, slip: bool) -> None:
    """huggingface/transformers issue 39055: DBRX hands its router's probabilities to a load-balancing function that
    expects logits and takes the softmax itself; a softmax of probabilities is nearly uniform whatever the router
    does, and the term hardly pulls any more."""

    def twice(logits: Tensor, mask: Tensor) -> Tensor:
        return switch(logits.softmax(-1), mask)

    expert_loop(run, twice if slip else switch, 0.03)


@fault("issue-transformers-28517", FAMILY, (r"\bpad", r"balanc|rout|expert|auxil"))
def padding_balanced(run: Run, slip: bool) -> None:
    """huggingface/transformers pull request 28517 (issue 28505): Mixtral's load-balancing loss counted the padding
    tokens, which all go to the same experts: with much padding the router is taught to balance that, and the true
    tokens are pushed onto the experts that padding leaves free."""

    def all_tokens(logits: Tensor, mask: Tensor) -> Tensor:
        return switch(logits, torch.ones_like(mask))

    expert_loop(run, all_tokens if slip else switch, 0.1, narrow=110)
