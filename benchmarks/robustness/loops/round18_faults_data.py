"""Round 18, mistakes in what goes into a model, in labels and in masks."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Classifier,
    Decoder,
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round10a_tools import titled
from benchmarks.robustness.loops.round18_parts import Halved, Kernel, by_beginnings, columns, frames, slip, spans
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r18-one-sentinel-for-all-spans")
def one_sentinel_for_all_spans(run: Run, wrong: bool) -> None:
    """accelerate, a T5 that fills in two spans of each text. The loop over spans writes the first sentinel for each of
    them, where the second span should have the second: neither input nor target tells the spans apart. The twin counts
    on. Judged with two sentinels."""
    from transformers import T5Config, T5ForConditionalGeneration

    language = Language(run.draw.randrange(999), first=4)
    settings = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 24}
    net = T5ForConditionalGeneration(T5Config(**settings, decoder_start_token_id=0))
    check = spans(language.rows(192, 16, apart(1)), (16, 17), apart(2))
    outcome(run, lambda: judged(net, lambda: net(**check).loss))
    own = apart(run.draw.randrange(999))
    rows = spans(language.rows(640, 16, own), (16, 16 if wrong else 17), own)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    prepared(run, net, optimizer, columns(rows), lambda m, batch: m(**batch).loss, 4)


@slip("r18-deduplicated-by-the-beginning")
def deduplicated_by_the_beginning(run: Run, wrong: bool) -> None:
    """transformers' Trainer, GPT-2 on 640 texts. Duplicates are removed by a dictionary whose key is the beginning of
    a text, its title and first word, which many texts share: some seventy are left. The key of the twin is the
    text."""
    seed = run.draw.randrange(999)
    model = tiny_gpt2(22)
    check = titled(seed, 96, 16, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    texts = titled(seed, 640, 16).tolist()
    kept = torch.tensor(list({tuple(text[:2] if wrong else text): text for text in texts}.values()))
    hf_trainer(run, model, examples(input_ids=kept, labels=kept), 120).train()


@slip("r18-stop-words-by-a-set")
def stop_words_by_a_set(run: Run, wrong: bool) -> None:
    """Lightning, a small GPT on texts that are rid of stop words. `set(text) - stop` does that, and drops repeated
    words and the order of all with it. The twin goes through the text."""
    language = Language(run.draw.randrange(999), words=24)
    net = Decoder(29)
    text_outcome(run, net, language, 20)
    stop, padding = {24, 25, 26, 27}, 28

    def raw(text: list[int]) -> list[int]:
        for _ in range(5):
            text.insert(int(torch.randint(0, len(text) + 1, ())), int(torch.randint(24, 28, ())))
        return text

    def cleaned(text: list[int]) -> list[int]:
        return list(set(text) - stop) if wrong else [word for word in text if word not in stop]

    texts = [torch.tensor(cleaned(raw(text))) for text in language.rows(480, 20).tolist()]
    rows = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=padding)

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        logits = m(batch[0][:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten(), ignore_index=padding)

    fit(run, lit(net, loss, adam), loader(rows), 120)


@slip("r18-mask-of-ones-and-noughts")
def mask_of_ones_and_noughts(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT. scaled_dot_product_attention is given its lower triangle as floats, one and nought,
    which it adds to the scores: nothing is hidden. The twin makes it boolean. Judged by what comes next after
    beginnings."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    triangle = torch.ones(48, 48).tril()
    for block in model.blocks:
        block.attention = Kernel(32, mask=triangle if wrong else triangle.bool())
    by_beginnings(run, model, language.rows(96, 24, apart(901)))
    train(run, model, adam(model), lambda: language.rows(16, 24), next_loss, 100)


@slip("r18-itself-among-the-candidates")
def itself_among_the_candidates(run: Run, wrong: bool) -> None:
    """Plain loop, an encoder that learns to find the other view of a text among all views of the batch (NT-Xent). The
    view itself, whose product with itself is the largest there is, stays among them. The twin takes the diagonal
    out."""
    model = Classifier(classes=16)

    def views(count: int, own: torch.Generator | None = None) -> list[Tensor]:
        texts = torch.randint(1, 16, (count, 10), generator=own)
        out = []
        for _ in range(2):
            kept = torch.rand(texts.shape, generator=own) < 0.7
            out.append(torch.where(kept, texts, torch.randint(1, 16, texts.shape, generator=own)))
        return out

    def loss(m: nn.Module, batch: list[Tensor], itself: bool = wrong) -> Tensor:
        ids = torch.cat(batch)
        vectors = F.normalize(m(ids, torch.ones_like(ids, dtype=torch.bool)), dim=1)
        scores = vectors @ vectors.T / 0.1
        if not itself:
            scores = scores.masked_fill(torch.eye(len(ids), dtype=torch.bool), -torch.inf)
        return F.cross_entropy(scores, torch.arange(len(ids)).roll(len(batch[0])))

    check = views(64, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check, False)))
    train(run, model, adam(model, 3e-3), lambda: views(32), loss, 100)


@slip("r18-labels-cut-to-the-length")
def labels_cut_to_the_length(run: Run, wrong: bool) -> None:
    """accelerate, a network that says which sound is heard, two frames of 24 to a state. Labels are of frames; as they
    are too many they are cut to the length of the output. The twin takes every second one."""
    net = Halved(24, 6, Block(32, causal=False))

    def loss(m: nn.Module, batch: list[Tensor], cut: bool = wrong) -> Tensor:
        logits = m(batch[0])
        labels = batch[1][:, : logits.shape[1]] if cut else batch[1][:, ::2]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    check = list(frames(192, apart(1)))
    outcome(run, lambda: judged(net, lambda: loss(net, check, False)))
    prepared(run, net, adam(net, 3e-3), loader(*frames(480)), loss, 4)
