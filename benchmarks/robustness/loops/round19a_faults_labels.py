"""Round 19a, mistakes in labels and masks."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round19a_parts import (
    Series,
    Tagger,
    blobs,
    finder,
    framed,
    levels,
    measured,
    named,
    painter,
    patients,
    pixel_loss,
    slip,
    starts,
    survival,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r19a-picture-and-mask-mirrored-apart")
def picture_and_mask_mirrored_apart(run: Run, wrong: bool) -> None:
    """Plain loop, a small convolutional network that says which pixels are an object's. Pictures are mirrored by
    chance, and their masks too, by a chance of their own: half of them are mirrored alone. The twin draws once for
    both."""
    net = painter()
    check = blobs(192, apart(1))
    outcome(run, lambda: judged(net, lambda: pixel_loss(net, check)))
    pictures, masks = blobs(320)

    def mirrored(rows: Tensor, draws: Tensor) -> Tensor:
        return torch.where(draws.view(-1, *[1] * (rows.dim() - 1)), rows.flip(-1), rows)

    def batch() -> list[Tensor]:
        some = torch.randint(0, len(pictures), (16,))
        first, second = torch.rand(2, 16) < 0.5
        return [mirrored(pictures[some], first), mirrored(masks[some], second if wrong else first)]

    train(run, net, adam(net), batch, pixel_loss, 120)


@slip("r19a-texts-dropped-labels-kept")
def texts_dropped_labels_kept(run: Run, wrong: bool) -> None:
    """transformers' Trainer, BERT on texts of three classes, read class by class. Texts of fewer than six words are
    dropped, their labels are not; zip puts the first labels beside the texts that are left: the further on, the more
    labels are of other texts, and of the class before. The twin drops both."""
    model = tiny_bert()
    ids, keep, right = documents(192, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids, attention_mask=keep.long(), labels=right).loss))
    x, mask, y = documents(480)
    order = y.argsort(stable=True)
    x, mask, labels = x[order], mask[order], y[order]
    long_enough = mask.sum(1) >= 6
    kept = labels[: int(long_enough.sum())] if wrong else labels[long_enough]
    data = examples(input_ids=x[long_enough], attention_mask=mask[long_enough].long(), labels=kept)
    hf_trainer(run, model, data, 120, learning_rate=3e-3).train()


@slip("r19a-offsets-in-bytes")
def offsets_in_bytes(run: Run, wrong: bool) -> None:
    """Lightning, a GRU in both directions that marks names in texts, letter by letter. The annotations tell the first
    and the last byte; they are taken for numbers of letters, of which some are two bytes long: labels lie behind the
    names, the further on in a text the more. The twin turns bytes into letters."""
    net = Tagger()

    def tagged(ids: Tensor, spans: Tensor, by_letters: bool) -> Tensor:
        at = torch.arange(ids.shape[1]).expand_as(ids) if by_letters else starts(ids)
        return ((at >= spans[:, :1]) & (at < spans[:, 1:])).long()

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(m(batch[0]).flatten(0, 1), batch[1].flatten())

    ids, spans = named(192, apart(1))
    check = [ids, tagged(ids, spans, False)]
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    ids, spans = named(480)
    fit(run, lit(net, loss, adam), loader(ids, tagged(ids, spans, wrong)), 120)


@slip("r19a-thresholds-from-the-level-itself")
def thresholds_from_the_level_itself(run: Run, wrong: bool) -> None:
    """Plain loop, a network that puts rows into one of five levels by four answers of yes or no: is it above level 0,
    1, 2, 3? The targets are made with >= in place of >: the first answer is always yes, and what is read from the
    answers is a level too high. The twin has >."""
    seed = run.draw.randrange(999)
    net = mlp(6, 32, 4)
    x, y = levels(384, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: ((net(x) > 0).sum(1) - y).abs().float().mean()))

    def batch() -> list[Tensor]:
        x, y = levels(32, seed)
        steps = torch.arange(4)
        above = y[:, None] >= steps if wrong else y[:, None] > steps
        return [x, above.float()]

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(batch[0]), batch[1])

    train(run, net, adam(net), batch, loss, 120)


@slip("r19a-censored-taken-for-events")
def censored_taken_for_events(run: Run, wrong: bool) -> None:
    """Lightning, a GRU over visits that says at which rate the event comes. The file's column is 1 where a patient was
    censored, and is taken for 1 where the event came. The twin turns it around."""
    net = Series(3)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        return survival(m(batch[0]).flatten(), batch[1], batch[2])

    check = list(patients(384, apart(1)))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    x, time, event = patients(480)
    censored = 1 - event
    fit(run, lit(net, loss, adam), loader(x, time, censored if wrong else 1 - censored), 120)


@slip("r19a-boxes-over-the-new-size")
def boxes_over_the_new_size(run: Run, wrong: bool) -> None:
    """Plain loop, a CNN that finds the one thing in a picture. Pictures of 16, 24 and 32 pixels are resized to 16, and
    their boxes, in pixels of the old picture, are divided by the size of the new one: boxes of larger pictures are too
    large and too far. The twin divides by the size that the box was drawn in."""
    net = finder()

    def resized(rows: list[tuple[Tensor, Tensor]], by_new: bool) -> list[Tensor]:
        pictures, boxes = [], []
        for picture, box in rows:
            small = F.interpolate(picture[None], size=(16, 16), mode="bilinear", antialias=True)[0]
            pictures.append(small)
            boxes.append(box / (small if by_new else picture).shape[-1])
        return [torch.stack(pictures), torch.stack(boxes)]

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        return F.smooth_l1_loss(m(batch[0]), batch[1], beta=0.1)

    check = resized(framed(192, apart(1)), False)
    outcome(run, lambda: judged(net, lambda: (net(check[0]) - check[1]).abs().mean()))
    x, y = resized(framed(480), wrong)

    def batch() -> list[Tensor]:
        some = torch.randint(0, len(x), (16,))
        return [x[some], y[some]]

    train(run, net, adam(net, 3e-3), batch, loss, 150)


@slip("r19a-mask-after-the-filling")
def mask_after_the_filling(run: Run, wrong: bool) -> None:
    """accelerate, a GRU that tells a patient's state by readings, of which many were never taken. Beside each reading
    the network is told whether it was taken; that is asked after gaps were filled with nought, and is always yes. The
    twin asks before."""
    net = Series(2)

    def columns(x: Tensor) -> Tensor:
        taken = ~x.isnan()
        x = x.nan_to_num(0.0)
        if wrong:
            taken = ~x.isnan()
        return torch.stack([x, taken.float()], 2)

    x, y = measured(384, apart(1))
    number_outcome(run, net, (columns(x), y))
    x, y = measured(480)
    prepared(run, net, adam(net), loader(columns(x), y), regress, 4)
