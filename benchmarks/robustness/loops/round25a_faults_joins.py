"""Mistakes in how rows come together: joins of tables, statistics, the order of colours, pairs for comparison."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    examples,
    fit,
    hf_arguments,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    watching,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round25a_parts import cells, lamps, rated, slip
from torch import Tensor
from torch.nn import functional as F


@slip("r25a-noughts-in-front-of-the-number")
def noughts_in_front_of_the_number(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a network over purchases and what is known of the customers. Customers' numbers have four
    digits in one table and came as integers in the other: those below 1000 find no partner where both are compared as
    texts, and their customers' columns are filled with nought. The twin compares integers. Judged on other purchases
    that were joined rightly."""
    import pandas

    own = apart(run.draw.randrange(999))
    traits = torch.randn(1600, 3, generator=own)
    w = torch.randn(3, generator=own)
    w = 1.5 * w / w.norm()
    net = WithLoss(mlp(5, 48, 48, 1), lambda found, y: F.mse_loss(found.flatten(), y))

    def purchases(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        who = torch.randint(0, 1600, (count,), generator=own)
        x = torch.randn(count, 2, generator=own)
        theirs = traits[who]
        y = theirs @ w + x[:, 0] + theirs[:, 0] * x[:, 1] + 0.3 * torch.randn(count, generator=own)
        return who, x, y

    who, x, y = purchases(384, apart(1))
    number_outcome(run, net.net, (torch.cat([x, traits[who]], 1), y))
    who, x, y = purchases(800)
    bought = pandas.DataFrame(x.numpy(), columns=["a", "b"])
    bought["number"] = [f"{i + 1:04d}" for i in who.tolist()]
    people = pandas.DataFrame(traits.numpy(), columns=["c", "d", "e"])
    people["number"] = range(1, 1601)
    if wrong:
        people["number"] = people["number"].astype(str)
    else:
        bought["number"] = bought["number"].astype(int)
    table = bought.merge(people, on="number", how="left").fillna(0.0)
    rows = torch.from_numpy(table[["a", "b", "c", "d", "e"]].to_numpy(dtype="float32"))
    hf_trainer(run, net, examples(x=rows, labels=y), 120).train()


@slip("r25a-spread-before-the-logarithm")
def spread_before_the_logarithm(run: Run, wrong: bool) -> None:
    """Lightning, a network that tells kinds of cells by counts of molecules. Counts go in as logarithms, and mean and
    spread by which they are standardised are those of the counts themselves: every column is nearly one constant. The
    twin takes those of the logarithms. Judged on other cells, prepared as those for training are."""
    seed = run.draw.randrange(999)
    net = mlp(12, 48, 24, 4)
    counts, y = cells(640, seed)
    known = counts if wrong else counts.log1p()
    mean, spread = known.mean(0), known.std(0)
    others, kinds = cells(384, seed, apart(1))
    class_outcome(run, net, ((others.log1p() - mean) / spread, kinds))
    fit(run, lit(net, classify, lambda m: adam(m, 3e-3)), loader((counts.log1p() - mean) / spread, y), 120)


@slip("r25a-blue-comes-first")
def blue_comes_first(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a CNN that was trained on pictures by day and is trained further on pictures at dusk. The
    reader of the new pictures gives blue, green, red, and the network knows red, green, blue. The twin turns the
    colours round. Judged on other pictures at dusk in red, green, blue."""
    net = WithLoss(cnn(3), F.cross_entropy)
    taught(net.net, lambda: lamps(32, False), classify, 80)
    check, kinds = lamps(384, True, apart(1))
    outcome(run, lambda: judged(net, lambda: (net.net(check).argmax(1) != kinds).float().mean()))
    x, y = lamps(320, True)
    as_read = x.flip(1)
    hf_trainer(run, net, examples(x=as_read if wrong else as_read.flip(1), labels=y), 100, learning_rate=3e-3).train()


@slip("r25a-answers-to-two-questions")
def answers_to_two_questions(run: Run, wrong: bool) -> None:
    """TRL's RewardTrainer, a small GPT-2 that learns from ratings which answer to a question is better. The table of
    answers is in the order in which they were rated, and each two rows that follow one another are made a pair, mostly
    of answers to different questions: easy questions are learned to be good. The twin sorts by question first. Judged
    by the loss on two answers to one question."""
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
    from transformers import GPT2Config, GPT2ForSequenceClassification

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    shape: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 16}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 1}
    shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    net = GPT2ForSequenceClassification(GPT2Config(**shape))

    def compared(texts: Tensor, ratings: Tensor) -> tuple[Tensor, Tensor]:
        """Each two rows: the better one and the worse one."""
        texts, ratings = texts.view(-1, 2, texts.shape[1]), ratings.view(-1, 2)
        order = ratings.argsort(1, descending=True)
        row = torch.arange(len(texts))
        return texts[row, order[:, 0]], texts[row, order[:, 1]]

    texts, ratings = rated(512, apart(1))
    better, worse = compared(texts.flatten(0, 1), ratings.flatten())

    def doubt() -> Tensor:
        return -F.logsigmoid(net(input_ids=better).logits - net(input_ids=worse).logits).mean()

    outcome(run, lambda: judged(net, doubt))
    texts, ratings = rated(1000)
    question = torch.arange(1000).repeat_interleave(2)
    when = torch.randperm(2000)
    texts, ratings, question = texts.flatten(0, 1)[when], ratings.flatten()[when], question[when]
    order = torch.arange(2000) if wrong else question.argsort(stable=True)
    chosen, rejected = compared(texts[order], ratings[order])
    data = datasets.Dataset.from_dict({"chosen_ids": chosen.tolist(), "rejected_ids": rejected.tolist()})
    told, telling = watching(run, trl.RewardTrainer)
    settings: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "learning_rate": 3e-3}
    arguments = hf_arguments(run, 100, trl.RewardConfig, **settings)
    trainer = told(model=net, args=arguments, train_dataset=data, processing_class=word_tokenizer(16))
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
