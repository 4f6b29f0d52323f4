"""Round 23a, mistakes in what is taught: mixed labels, tags, numbers, weights of classes, soft targets, preferences."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    apart,
    class_outcome,
    hf_trainer,
    judged,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Patches
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round8b_parts import told_loss
from benchmarks.robustness.loops.round23a_parts import named, slip
from torch import Tensor
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
