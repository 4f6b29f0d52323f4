"""Round 23a, mistakes in what is taught: mixed labels, tags, numbers, weights of classes, soft targets, preferences."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    apart,
    class_outcome,
    cnn,
    endless,
    fit,
    hf_arguments,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    pictures,
    tiny_gpt2,
    train,
    watching,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Listener, Patches
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round8b_parts import told_loss
from benchmarks.robustness.loops.round23a_parts import (
    Alike,
    Lines,
    compass,
    directions,
    likenesses,
    named,
    replies,
    slip,
    tones,
    vanes,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23a-mixed-with-the-labels-of-others")
def mixed_with_the_labels_of_others(run: Run, wrong: bool) -> None:
    """Plain loop, a small vision transformer with mixup. Pictures are mixed in one random order of the batch and labels
    in another that is drawn anew: the second label of a mixture is that of a picture which isn't in it. The twin draws
    one order for both. Judged on other pictures as they are."""
    seed = run.draw.randrange(999)
    net = Patches(4)
    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    x, y = pictures(400, seed)
    target = F.one_hot(y, 4).float()

    def mixed(values: Tensor, share: Tensor, order: Tensor) -> Tensor:
        return share * values + (1 - share) * values[order]

    def batch() -> tuple[Tensor, Tensor]:
        drawn = torch.randint(0, len(x), (32,))
        share, order = torch.rand(()), torch.randperm(32)
        return mixed(x[drawn], share, order), mixed(target[drawn], share, torch.randperm(32) if wrong else order)

    train(run, net, adam(net, 3e-3), batch, classify, 150)


@slip("r23a-every-piece-begins-a-name")
def every_piece_begins_a_name(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small BERT that finds names in texts cut into pieces of words. A piece has the tag of
    its word, also where that says that a name begins: the later pieces of a name's first word are taught as further
    beginnings. The twin has a beginning on the first piece alone, and on the others that the name goes on. Judged on
    other texts so tagged."""
    from transformers import BertConfig, BertForTokenClassification

    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 30}
    shape |= {"intermediate_size": 64, "max_position_embeddings": 24, "num_labels": 3}
    shape |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    net = BertForTokenClassification(BertConfig(**shape))
    check = named(192, False, apart(1))
    outcome(run, lambda: judged(net, lambda: told_loss(net, check)))
    rows = named(640, wrong)
    data = Examples([{name: column[i] for name, column in rows.items()} for i in range(640)])
    hf_trainer(run, net, data, 140).train()


@slip("r23a-likeness-in-whole-numbers")
def likeness_in_whole_numbers(run: Run, wrong: bool) -> None:
    """accelerate, one encoder of two texts whose cosine says how alike they are. The targets, numbers with a fraction,
    are written into an array that was made like that of the words' ids, of whole numbers: each loses its fraction. The
    twin's array is one of floats. Judged on other pairs with their fractions."""
    seed = run.draw.randrange(999)
    net = Alike()
    both, said = likenesses(384, seed, apart(1))
    number_outcome(run, net, (torch.from_numpy(both), torch.from_numpy(said)))
    both, said = likenesses(640, seed)
    target = np.zeros_like(both[:, 0, 0]) if wrong else np.zeros(len(both), dtype=np.float32)
    target[:] = said
    rows = loader(torch.from_numpy(both), torch.from_numpy(target).float())
    prepared(run, net, adam(net, 1e-2), rows, regress, 3)


@slip("r23a-weights-from-the-most-frequent-down")
def weights_from_the_most_frequent_down(run: Run, wrong: bool) -> None:
    """Lightning, convolutions over tones of four pitches, some of them rare. Weights of classes are one over what
    value_counts says, which is in the order of how frequent a class is and not in that of classes. The twin sorts by
    class. Judged by the cross-entropy of other tones, pitches alike in number."""
    net = Listener()
    class_outcome(run, net, tones(400, [0.25] * 4, apart(1)))
    x, y = tones(960, [0.10, 0.62, 0.05, 0.23])
    counts = pd.Series(y.numpy()).value_counts()
    rare = 1 / torch.tensor((counts if wrong else counts.sort_index()).to_numpy()).float()
    weights = rare / rare.mean()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1], weight=weights)

    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(x, y, size=32), 150)


@slip("r23a-shares-softened-as-scores")
def shares_softened_as_scores(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that reads pictures line by line and learns from a teacher and, less, from labels. What the
    teacher says is kept after its softmax, and softened like scores, by another softmax: all soft targets are nearly
    even. The twin keeps scores. Judged by the cross-entropy of other pictures."""
    seed = run.draw.randrange(999)
    teacher, net = cnn(), Lines()
    taught(teacher, lambda: pictures(64, seed), classify, 80)
    teacher.eval()
    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    x, y = pictures(480, seed)
    with torch.no_grad():
        said = teacher(x).softmax(1) if wrong else teacher(x)
    batches = endless(loader(x, y, said))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y, said = batch
        found = m(x)
        apart_by = F.kl_div((found / 2).log_softmax(1), (said / 2).softmax(1), reduction="batchmean")
        return 0.3 * F.cross_entropy(found, y) + 0.7 * 4 * apart_by

    train(run, net, adam(net, 5e-3), lambda: next(batches), loss, 150)


@slip("r23a-between-350-and-10")
def between_350_and_10(run: Run, wrong: bool) -> None:
    """Lightning, a CNN that says where something in a picture points to. Three people have read the angle of each
    picture in degrees, and the target is the mean of the three numbers: of 350, 10 and 15 that is 125. The twin takes
    the direction of the sum of the three. Judged by how far the directions found are from the true ones."""
    net = compass()
    x, angle = vanes(384, apart(1))
    outcome(run, lambda: judged(net, lambda: 1 - F.cosine_similarity(net(x), directions(angle)).mean()))
    x, angle = vanes(400)
    readings = (angle[:, None] + 20 * torch.randn(400, 3)) % 360
    target = directions(readings.mean(1)) if wrong else F.normalize(directions(readings).sum(1), dim=1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(x, target), 150)


@slip("r23a-first-place-for-a-low-mark")
def first_place_for_a_low_mark(run: Run, wrong: bool) -> None:
    """TRL's DPOTrainer, a small GPT-2 and pairs of replies from two sources. One source has marks, of which more is
    better, the other has ranks, of which the first is best; in both the reply with the larger number is taken as the
    better one. The twin turns ranks around. Judged by the loss of other pairs of both sources."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    net = tiny_gpt2()

    def whole(both: Tensor, source: Tensor) -> Tensor:
        return torch.cat([(4 + source).expand(2, -1)[..., None], both], 2)

    def earlier() -> Tensor:
        both, _, source = replies(16)
        return whole(both, source).flatten(0, 1)

    taught(net, earlier, lambda m, rows: m(input_ids=rows, labels=rows).loss, 40)
    reference = copy.deepcopy(net)
    both, good, source = replies(384, apart(1))
    check, liked = whole(both, source), good[0] > good[1]

    def margin(m: nn.Module) -> Tensor:
        said = m(input_ids=check.flatten(0, 1)).logits[:, :-1].log_softmax(2)
        each = said.gather(2, check.flatten(0, 1)[:, 1:, None]).sum((1, 2)).view(2, -1)
        return torch.where(liked, each[0] - each[1], each[1] - each[0])

    outcome(run, lambda: judged(net, lambda: -F.logsigmoid(0.5 * (margin(net) - margin(reference))).mean()))
    both, good, source = replies(960)
    rank = 1 + (good < good.flip(0)).long()
    number = torch.where(source == 1, rank if wrong else 3 - rank, good)
    ours = number[0] > number[1]
    chosen, rejected = (torch.where(first[:, None], *both) for first in (ours, ~ours))

    def text(row: list[int]) -> str:
        return " ".join(f"w{word}" for word in row)

    columns = {"prompt": [text([4 + s]) for s in source.tolist()]}
    columns |= {"chosen": [" " + text(row) for row in chosen.tolist()]}
    columns |= {"rejected": [" " + text(row) for row in rejected.tolist()]}
    told, telling = watching(run, trl.DPOTrainer)
    settings: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "learning_rate": 1e-3, "beta": 0.5}
    arguments = hf_arguments(run, 60, trl.DPOConfig, **settings)
    data = datasets.Dataset.from_dict(columns)
    options = {"train_dataset": data, "processing_class": word_tokenizer(16)}
    trainer = told(model=net, ref_model=reference, args=arguments, **options)
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
