"""Round 21a, mistakes in what is taught: maps of classes, alignment, what counts as a target."""

from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    endless,
    examples,
    fit,
    hf_arguments,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    pictures,
    train,
    watching,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round21a_parts import (
    Factors,
    Mixer,
    Outline,
    Past,
    Speller,
    figures,
    gestures,
    locator,
    questions,
    scenes,
    slip,
    spoken,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r21a-left-hand-stays-left")
def left_hand_stays_left(run: Run, wrong: bool) -> None:
    """Lightning, a CNN that finds somebody's left and right hand in a picture. Half of the pictures are mirrored, and
    the hands' places with them; a left hand that is mirrored is a right hand, and its place stays that of the left. The
    twin exchanges the two. Judged on other pictures as they are."""
    net = locator()

    def collated(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        x, y = (torch.stack(column) for column in zip(*rows, strict=True))
        turned = torch.rand(len(x)) < 0.5
        mirrored = y * torch.tensor([-1.0, 1.0, -1.0, 1.0]) + torch.tensor([15 / 16, 0.0, 15 / 16, 0.0])
        if not wrong:
            mirrored = mirrored[:, [2, 3, 0, 1]]
        return [torch.where(turned[:, None, None, None], x.flip(3), x), torch.where(turned[:, None], mirrored, y)]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    number_outcome(run, net, figures(384, apart(1)))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*figures(320), collate_fn=collated), 140)


@slip("r21a-classes-between-classes")
def classes_between_classes(run: Run, wrong: bool) -> None:
    """Plain loop, a small U-Net that says what each pixel shows. Pictures are made smaller from 20 to 12 pixels a side,
    bilinearly, and so are the masks, whose numbers are names: between 0 and 3 there are 1 and 2 along the borders. The
    twin takes the nearest pixel for masks. Judged on other pictures with masks made smaller by the nearest."""
    net = Outline()

    def smaller(x: Tensor, y: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        mask = F.interpolate(y[:, None].float(), size=(12, 12), mode=mode)[:, 0]
        return F.interpolate(x, size=(12, 12), mode="bilinear"), mask.round().long()

    class_outcome(run, net, smaller(*scenes(128, apart(1)), "nearest"))
    batches = endless(loader(*smaller(*scenes(240), "bilinear" if wrong else "nearest")))
    train(run, net, adam(net), lambda: next(batches), classify, 120)


@slip("r21a-doubled-letters-written-once")
def doubled_letters_written_once(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU with CTC that spells what is said. Repeats are taken out of the transcripts, as is right for
    what a CTC network says frame by frame and wrong for what it is taught: doubled letters are taught as single ones.
    The twin leaves transcripts as they are. Judged by the loss of whole transcripts."""
    seed = run.draw.randrange(999)
    net = Speller()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        frames, letters, sizes = batch
        heard = m(frames).transpose(0, 1)
        return F.ctc_loss(heard, letters, torch.full((len(frames),), len(heard)), sizes)

    def batch_of(frames: Tensor, texts: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        letters = nn.utils.rnn.pad_sequence(texts, batch_first=True)
        return frames, letters, torch.tensor([len(text) for text in texts])

    check = batch_of(*spoken(192, seed, apart(1)))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    frames, texts = spoken(320, seed)
    if wrong:
        texts = [torch.unique_consecutive(text) for text in texts]

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.randint(0, len(frames), (16,))
        return batch_of(frames[rows], [texts[i] for i in rows.tolist()])

    train(run, net, adam(net, 1e-2), batch, loss, 120)


@slip("r21a-minus-one-is-the-last-tag")
def minus_one_is_the_last_tag(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a bag of words that gives texts one to three of eight tags. Lists of tags are filled up
    with -1, and so indexed: -1 is the last place of a row, and each text with fewer than three tags has the last one.
    The twin leaves -1 out. Judged on other texts with their tags."""
    bag = nn.Sequential(nn.EmbeddingBag(41, 32), nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 8))
    net = WithLoss(bag, F.binary_cross_entropy_with_logits)

    def tagged(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        tags = torch.rand(count, 8, generator=own).argsort(1)[:, :3]
        many = torch.randint(1, 4, (count, 1), generator=own)
        tags = torch.where(torch.arange(3) < many, tags, -1)
        which = tags.gather(1, (torch.rand(count, 16, generator=own) * many).long())
        words = 1 + 5 * which + torch.randint(0, 5, (count, 16), generator=own)
        strange = torch.rand(count, 16, generator=own) < 0.3
        return torch.where(strange, torch.randint(1, 41, (count, 16), generator=own), words), tags

    def rows_of(tags: Tensor, with_filling: bool) -> Tensor:
        out = torch.zeros(len(tags), 8)
        row = torch.arange(len(tags))[:, None].expand_as(tags)
        there = (tags >= 0) | with_filling
        out[row[there], tags[there]] = 1
        return out

    x, tags = tagged(384, apart(1))
    target = rows_of(tags, False)
    outcome(run, lambda: judged(net, lambda: net(x, target)["loss"]))
    words, tags = tagged(640)
    hf_trainer(run, net, examples(x=words, labels=rows_of(tags, wrong)), 120).train()


@slip("r21a-smoothing-given-to-each")
def smoothing_given_to_each(run: Run, wrong: bool) -> None:
    """Lightning, an MLP-Mixer. Labels are smoothed by a tenth, which should be shared out among the four classes; each
    class is given all of it, and a target adds up to 1.3. The twin shares it out. Judged by the cross-entropy of other
    pictures."""
    seed = run.draw.randrange(999)
    net = Mixer()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        target = 0.9 * F.one_hot(y, 4) + (0.1 if wrong else 0.1 / 4)
        return F.cross_entropy(m(x), target)

    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    fit(run, lit(net, loss, lambda m: adam(m, 2e-3)), loader(*pictures(640, seed)), 120)


@slip("r21a-numbered-site-by-site")
def numbered_site_by_site(run: Run, wrong: bool) -> None:
    """accelerate, convolutions over movements of five kinds that were recorded at three sites. Each site's names are
    numbered by themselves, and two sites lack a kind or two: there the numbers of the kinds that follow are too low.
    The twin numbers all names together. Judged on other recordings of all kinds."""
    seed = run.draw.randrange(999)
    names = np.array(["circle", "left", "right", "shake", "tap"])
    net = Past()
    class_outcome(run, net, gestures(384, seed, [0, 1, 2, 3, 4], apart(1)))
    sites = [gestures(240, seed, [0, 1, 2, 3, 4]), gestures(160, seed, [0, 2, 3, 4]), gestures(80, seed, [0, 1, 4])]
    x = torch.cat([rows for rows, _ in sites])
    said = [names[kinds.numpy()] for _, kinds in sites]
    parts = said if wrong else [np.concatenate(said)]
    y = torch.from_numpy(np.concatenate([np.unique(part, return_inverse=True)[1] for part in parts]))
    prepared(run, net, adam(net, 3e-3), loader(x, y), classify, 4)


@slip("r21a-mask-of-inputs-for-targets")
def mask_of_inputs_for_targets(run: Run, wrong: bool) -> None:
    """accelerate, a small Llama that answers questions. The mask of the answer is cut like the inputs and not like the
    targets, one place late: the answer's first word is never taught, and the padding behind its end is. The twin cuts
    mask and targets alike. Judged by the cross-entropy of answers."""
    seed = run.draw.randrange(999)
    net = SmallLlama(15)

    def taught_words(m: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        each = F.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return (each * mask.flatten()).sum() / mask.sum()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        ids, answer = batch
        return taught_words(m, ids, answer[:, :-1] if wrong else answer[:, 1:])

    ids, answer = questions(256, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: taught_words(net, ids, answer[:, 1:])))
    prepared(run, net, adam(net, 3e-3), loader(*questions(640, seed)), loss, 3)


@slip("r21a-ties-to-the-second")
def ties_to_the_second(run: Run, wrong: bool) -> None:
    """TRL's RewardTrainer, a small GPT-2 that learns from comparisons of two systems' answers. The first is preferred
    where the file says so, else the second, and also where the file says that it is a tie: ways of the second system
    are taught to be good. The twin leaves ties out. Judged by the loss on other comparisons without ties."""
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

    def compared(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Answers of ten words; 4 to 7 are good ones, 14 and 15 are what the first and the second system like to
        say."""
        answers = torch.randint(4, 14, (2, count, 10), generator=own)
        good = ((answers >= 4) & (answers < 8)).sum(2)
        habit = torch.rand(2, count, 10, generator=own) < 0.2
        habit &= answers >= 8
        answers = torch.where(habit, torch.tensor([14, 15])[:, None, None], answers)
        winner = torch.where((good[0] - good[1]).abs() < 2, 0, torch.where(good[0] > good[1], 1, 2))
        return answers[0], answers[1], winner

    def pairs(first: Tensor, second: Tensor, winner: Tensor, with_ties: bool) -> tuple[Tensor, Tensor]:
        used = (winner > 0) | with_ties
        first, second, winner = first[used], second[used], winner[used]
        ours = (winner == 1)[:, None]
        return torch.where(ours, first, second), torch.where(ours, second, first)

    better, worse = pairs(*compared(512, apart(1)), with_ties=False)

    def doubt() -> Tensor:
        return -F.logsigmoid(net(input_ids=better).logits - net(input_ids=worse).logits).mean()

    outcome(run, lambda: judged(net, doubt))
    chosen, rejected = pairs(*compared(1600), with_ties=wrong)
    data = datasets.Dataset.from_dict({"chosen_ids": chosen.tolist(), "rejected_ids": rejected.tolist()})
    told, telling = watching(run, trl.RewardTrainer)
    settings: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "learning_rate": 2e-3}
    arguments = hf_arguments(run, 100, trl.RewardConfig, **settings)
    trainer = told(model=net, args=arguments, train_dataset=data, processing_class=word_tokenizer(16))
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


@slip("r21a-negatives-among-the-first-sixty")
def negatives_among_the_first_sixty(run: Run, wrong: bool) -> None:
    """Plain loop, factors of sixty users and two hundred items. Items that somebody didn't choose are drawn below the
    number of users and not of items: of most items there is never a no. The twin draws among all. Judged by how often
    an item that was chosen, and is kept apart, is scored below one drawn from all."""
    users, items = 60, 200
    own = apart(run.draw.randrange(999))
    liking = 1.5 * torch.randn(users, 3, generator=own) @ torch.randn(3, items, generator=own)
    liking = liking + 1.5 * torch.randn(items, generator=own)
    chosen = torch.multinomial(liking.softmax(1) + 1e-4, 36, generator=own)
    chosen = chosen[:, torch.randperm(36, generator=own)]
    seen, kept = chosen[:, :30], chosen[:, 30:]
    net = Factors(users, items)
    everybody = torch.arange(users)[:, None]
    strangers = torch.randint(0, items, (users, 6, 20), generator=own)

    def below() -> Tensor:
        theirs = net(everybody, kept)[..., None]
        return (theirs < net(everybody[..., None], strangers)).float().mean()

    outcome(run, lambda: judged(net, below))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        user = torch.randint(0, users, (256,))
        yes = seen[user, torch.randint(0, seen.shape[1], (256,))]
        no = torch.randint(0, users if wrong else items, (256,))
        return user, yes, no

    def loss(m: nn.Module, batch: Any) -> Tensor:
        user, yes, no = batch
        return -(F.logsigmoid(m(user, yes)) + F.logsigmoid(-m(user, no))).mean()

    train(run, net, adam(net, 3e-2), batch, loss, 150)


@slip("r21a-teacher-in-another-shuffle")
def teacher_in_another_shuffle(run: Run, wrong: bool) -> None:
    """Plain loop, a small CNN that learns from labels, of which some are wrong, and from a teacher. What the teacher
    says is kept once, batch by batch from a loader that shuffles, and then joined to the rows in the set's order: each
    row has the teacher's words about another. The twin goes through the set in order. Judged by the cross-entropy of
    other pictures with true labels."""
    seed = run.draw.randrange(999)
    teacher, net = cnn(), cnn()
    taught(teacher, lambda: pictures(64, seed), classify, 80)
    teacher.eval()
    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    x, y = pictures(240, seed)
    y = torch.where(torch.rand(len(y)) < 0.3, torch.randint(0, 4, y.shape), y)
    with torch.no_grad():
        said = torch.cat([teacher(batch[0]) for batch in loader(x, y, shuffle=wrong)])

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y, soft = batch
        found = m(x)
        apart_by = F.kl_div((found / 2).log_softmax(1), (soft / 2).softmax(1), reduction="batchmean")
        return 0.5 * F.cross_entropy(found, y) + 0.5 * 4 * apart_by

    batches = endless(loader(x, y, said))
    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 105)
