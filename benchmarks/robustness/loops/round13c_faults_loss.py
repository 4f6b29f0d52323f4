"""Round 13c, mistakes in the loss."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, judged, loader, outcome
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round10a_tools import plain
from benchmarks.robustness.loops.round13c_parts import Mixture, Tagger, either_way, slip, spoken, tag_rows
from torch import Tensor, nn
from torch.nn import functional as F


def chain_loss(scores: Tensor, step: Tensor, tags: Tensor, step_of_all: Tensor) -> Tensor:
    """A linear chain's negative log likelihood a row: `step` scores the tags given, `step_of_all` all rows of tags."""
    own = scores.gather(2, tags[..., None]).squeeze(2).sum(1) + step[tags[:, :-1], tags[:, 1:]].sum(1)
    alpha = scores[:, 0]
    for place in scores[:, 1:].unbind(1):
        alpha = (alpha[:, :, None] + step_of_all + place[:, None]).logsumexp(1)
    return (alpha.logsumexp(1) - own).mean()


@slip("r13c-transitions-turned-in-one-of-two")
def transitions_turned_in_one_of_two(run: Run, wrong: bool) -> None:
    """Plain loop, tags by a recurrent network and a conditional random field of one's own. The score of the right tags
    reads the table of transitions as (from, to), the sum over all tags, written for another library's table, as (to,
    from). The twin reads both alike."""
    model = Tagger(12, 4)
    check = tag_rows(192, 12, apart(1))
    outcome(run, lambda: judged(model, lambda: chain_loss(model(check[0]), model.step, check[1], model.step)))

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, tags = batch
        return chain_loss(model(ids), model.step, tags, model.step.T if wrong else model.step)

    plain(run, model, lambda: tag_rows(16, 12), loss, 120, 1e-2)


@slip("r13c-ctc-of-raw-scores")
def ctc_of_raw_scores(run: Run, wrong: bool) -> None:
    """accelerate, a recurrent reader of sounds with the CTC loss. F.ctc_loss wants logarithms of probabilities and is
    given the head's scores as they come, which nothing normalises: it falls without end as all scores rise. The twin
    takes log_softmax."""
    seed = run.draw.randrange(999)

    class Hearing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core, self.head = nn.GRU(8, 24, batch_first=True, bidirectional=True), nn.Linear(48, 7)

        def forward(self, frames: Tensor) -> Tensor:
            out: Tensor = self.head(self.core(frames)[0])
            return out

    def read(scores: Tensor, letters: Tensor) -> Tensor:
        frames, said = (torch.full((len(letters),), n, dtype=torch.long) for n in (25, 5))
        return F.ctc_loss(scores.transpose(0, 1), letters, frames, said)

    net, check = Hearing(), spoken(seed, 128, apart(1))
    outcome(run, lambda: judged(net, lambda: read(net(check[0]).log_softmax(-1), check[1])))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        scores = model(batch[0])
        return read(scores if wrong else scores.log_softmax(-1), batch[1])

    prepared(run, net, torch.optim.AdamW(net.parameters(), lr=1e-2), loader(*spoken(seed, 480)), loss, 3)


@slip("r13c-logarithm-inside-the-mixture")
def logarithm_inside_the_mixture(run: Run, wrong: bool) -> None:
    """Plain loop, a forecast by a mixture of four normal distributions, of a number that is high or low by chance. The
    likelihood is the logarithm of a weighted sum; the loss is the weighted sum of logarithms, by which one distribution
    has to explain both. The twin has logsumexp."""
    model = Mixture()
    x, y = either_way(512, apart(1))

    def by_part(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the shares and of the densities: (rows, 4)."""
        share, mean, spread = model(x)
        return share, -0.5 * ((y[:, None] - mean) / spread.exp()).square() - spread - 0.919

    outcome(run, lambda: judged(model, lambda: -sum(by_part(x, y)).logsumexp(1).mean()))  # type: ignore[union-attr]

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        share, density = by_part(*batch)
        return -(share.exp() * density).sum(1).mean() if wrong else -(share + density).logsumexp(1).mean()

    plain(run, model, lambda: either_way(48), loss, 160, 1e-2)
