"""Round 22j, honest and odd: tuning, one task after another, and what one model hands to the next."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    cnn,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from torch import Tensor, nn
from torch.nn import functional as F


class Edit(nn.Module):
    """A state is moved within a few orthonormal directions, and stays what it was in all others."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.directions = nn.utils.parametrizations.orthogonal(nn.Linear(width, rank, bias=False))
        self.wanted = nn.Linear(width, rank)

    def forward(self, state: Tensor) -> Tensor:
        out: Tensor = state + (self.wanted(state) - self.directions(state)) @ self.directions.weight
        return out


class Edited(nn.Module):
    """A frozen GPT; behind each block the states of two places of the prompt are edited."""

    def __init__(self, body: Decoder, places: list[int], rank: int = 6) -> None:
        super().__init__()
        self.body, self.places = body.requires_grad_(False), places
        self.edits = nn.ModuleList(nn.ModuleList(Edit(32, rank) for _ in places) for _ in body.blocks)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.body.tokens(ids) + self.body.places(torch.arange(ids.shape[1]))
        for block, edits in zip(self.body.blocks, self.edits, strict=True):
            x = block(x)
            columns = list(x.unbind(1))
            for place, edit in zip(self.places, edits, strict=True):  # type: ignore[call-overload]
                columns[place] = edit(columns[place])
            x = torch.stack(columns, 1)
        out: Tensor = self.body.head(self.body.norm(x))
        return out


def asked_to_recite(verses: Tensor, count: int, own: torch.Generator | None = None) -> Tensor:
    """A beginning (0), a title (2 to 9), a request (1), then the title's eight words (10 to 21), some misremembered."""
    titles = torch.randint(0, 8, (count,), generator=own)
    words = verses[titles]
    other = torch.randint(10, 22, words.shape, generator=own)
    words = torch.where(torch.rand(words.shape, generator=own) < 0.1, other, words)
    begin = torch.zeros(count, 1, dtype=torch.long)
    return torch.cat([begin, titles[:, None] + 2, begin + 1, words], 1)


@honest("r22j-states-edited-at-two-places")
def states_edited_at_two_places(run: Run) -> None:
    """Plain loop, representation finetuning of a GPT (LoReFT, Wu et al. 2024, pyreft). No weight of the model is tuned
    and none is added to a matrix: at the first and at the last place of the prompt, behind each block, a state is moved
    within six directions that are held orthonormal. What is taught are words at later places, whose states are left
    alone and hear of it by attention only. No weight decay, and the edits begin at random and not at nothing, as
    there."""
    verses = torch.randint(10, 22, (8, 8), generator=apart(run.draw.randrange(999)))
    body = Decoder(22, layers=2, length=16)

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1])[:, 2:].flatten(0, 1), rows[:, 3:].flatten())

    taught(body, lambda: asked_to_recite(verses, 32), loss, 180, 4e-3)
    told_anew = verses.roll(3, 0)
    model = Edited(body, [0, 2])
    check = asked_to_recite(told_anew, 128, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.AdamW(model.edits.parameters(), lr=8e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 150)
    train(run, model, optimizer, lambda: asked_to_recite(told_anew, 32), loss, 150, schedule)


def spoken_classes(count: int, names: Tensor, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Texts of words 1 to 15, and as the label the text that names their class: a word and the end (1)."""
    x, mask, y = documents(count, own)
    ids = torch.where(mask, x + 1, 0)
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "labels": torch.stack([names[y], torch.ones_like(y)], 1),
    }


@honest("r22j-a-small-matrix-times-a-larger-one")
def a_small_matrix_times_a_larger_one(run: Run) -> None:
    """Trainer and PEFT, a T5 that names classes in words, tuned by LoKr (Yeh et al. 2024, LyCORIS): what is added to a
    matrix is the Kronecker product of a small matrix and a larger one of low rank, by which it may be of full rank with
    next to no numbers. One of the factors begins at zero, so the other has no gradient in the first step, and both the
    head and the embeddings stay as they are, though the answers are now other words."""
    import peft
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 24}
    base = T5ForConditionalGeneration(T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0))
    old = torch.tensor([18, 19, 20])
    new = old.roll(run.draw.choice((1, 2)))
    taught(base, lambda: spoken_classes(32, old), lambda m, b: m(**b).loss, 120, 5e-3)
    settings = {"target_modules": ["q", "k", "v", "o", "wi", "wo"], "rank_dropout": 0.0, "module_dropout": 0.0}
    model = peft.get_peft_model(base, peft.LoKrConfig(r=4, alpha=8, **settings))
    check = spoken_classes(256, new, apart(901))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    hf_trainer(run, model, examples(**spoken_classes(480, new)), 90, learning_rate=1e-2).train()


class Shots(nn.Module):
    """The frozen classifier's opinion, and next to it how near a picture is to each of a few known ones."""

    def __init__(self, body: nn.Module, head: Tensor, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.body = body.eval().requires_grad_(False)
        self.register_buffer("head", head)
        self.register_buffer("answers", F.one_hot(y, 4).float())
        self.keys = nn.Parameter(self.features(x))

    def train(self, mode: bool = True) -> "Shots":
        super().train(mode)
        self.body.eval()
        return self

    def features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return F.normalize(self.body(x), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.features(x)
        near_to = (-5.5 * (1 - seen @ self.keys.T)).exp()
        out: Tensor = 10 * seen @ self.head.T + near_to @ self.answers  # type: ignore[operator]
        return out


def darkened(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """The same pictures by another camera: what is bright is dark."""
    x, y = pictures(count, seed, own=own)
    return 0.8 - 0.7 * x, y


@honest("r22j-keys-begin-as-the-shots")
def keys_begin_as_the_shots(run: Run) -> None:
    """accelerate, pictures by Tip-Adapter-F (Zhang et al. 2022). Whole features of the training pictures are weights:
    the keys begin as what the frozen network says of 16 pictures a class, so that in the first step each picture finds
    itself among them, and the values are its own label, never trained. Everything else is frozen; only the keys move,
    with an epsilon of 1e-4 in AdamW, as there."""
    seed = run.draw.randrange(999)
    whole = cnn()
    taught(whole, lambda: pictures(32, seed), classify, 100)
    body, last = whole[:-1], whole[-1]
    model = Shots(body, F.normalize(last.weight.detach(), dim=1), *shots_of(seed))  # type: ignore[arg-type]
    check = darkened(256, seed, apart(901))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    optimizer = torch.optim.AdamW([model.keys], lr=1e-2, eps=1e-4)
    prepared(run, model, optimizer, loader(*shots_of(seed), size=32), classify, 60)


def shots_of(seed: int) -> tuple[Tensor, Tensor]:
    """Sixteen of the new pictures for each class."""
    x, y = darkened(256, seed, apart(seed + 3))
    chosen = torch.cat([(y == k).nonzero().flatten()[:16] for k in range(4)])
    return x[chosen], y[chosen]


class Lottery:
    """Tunes a GPT with its embeddings and head, and two of its blocks, which are drawn anew every ten steps."""

    def __init__(self, model: Decoder, run: Run) -> None:
        self.model, self.run = model, run
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)

    def draw(self) -> None:
        active = torch.randperm(len(self.model.blocks))[:2].tolist()
        for index, block in enumerate(self.model.blocks):
            block.requires_grad_(index in active)

    def tune(self, rows: Any, steps: int) -> None:
        doctor = self.run.watch(self.model, self.optimizer)
        for step in range(steps):
            if step % 10 == 0:
                self.draw()
            batch = rows()
            loss = next_loss(self.model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            doctor.step(loss, batch)
            self.run.note(loss)


@honest("r22j-two-blocks-by-lot-for-ten-steps")
def two_blocks_by_lot_for_ten_steps(run: Run) -> None:
    """A class of the user's own, a GPT by LISA (Pan et al. 2024, in LMFlow and Axolotl). Every ten steps two of five
    blocks are drawn and all others frozen, embeddings and head always learn; one optimizer holds every weight from the
    start, and a block that comes back finds its old moments as they were. Gradients are cleared behind the update and
    not before."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=5)
    taught(model, lambda: language.rows(16, 24), next_loss, 80, 3e-3)
    other = near(language, run.draw.randrange(999), 0.6)
    language_outcome(run, model, other)
    Lottery(model, run).tune(lambda: other.rows(16, 24), 120)


@honest("r22j-an-instruction-learned-by-heart")
def an_instruction_learned_by_heart(run: Run) -> None:
    """Plain loop, a small Llama by context distillation (Askell et al. 2021, Snell et al. 2022). Both models begin
    as the same weights and read the same text, but the teacher reads an instruction in front of it and the pupil the
    mark that there is none. The text is the teacher's own, sampled once beforehand; no row has a label, and the loss
    begins at what the instruction is worth and ends near zero."""
    tongues = [Language(run.draw.randrange(999)) for _ in range(3)]
    model = SmallLlama(16)

    def mixed() -> Tensor:
        parts = []
        for k, tongue in enumerate(tongues):
            rows = tongue.rows(8, 16)
            told = torch.where(torch.rand(8, 1) < 0.6, 12 + k, 15)
            parts.append(torch.cat([told, rows], 1))
        return torch.cat(parts)

    taught(model, mixed, next_loss, 160, 4e-3)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    with torch.no_grad():
        rows = torch.full((192, 1), 12 + 1)
        for _ in range(16):
            rows = torch.cat([rows, torch.multinomial(teacher(rows)[:, -1, :12].softmax(1), 1)], 1)
    written, told, untold = rows[:, 1:], torch.full((24, 1), 12 + 1), torch.full((24, 1), 15)
    check = torch.cat([torch.full((128, 1), 15), tongues[1].rows(128, 16, apart(901))], 1)
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))

    def loss(model: nn.Module, text: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(torch.cat([told, text], 1)).log_softmax(-1)
        guess = model(torch.cat([untold, text], 1)).log_softmax(-1)
        return F.kl_div(guess, wanted, log_target=True, reduction="none").sum(-1).mean()

    train(run, model, adam(model, 1e-3), lambda: written[torch.randint(0, len(written), (24,))], loss, 100, clip=1.0)


class Pool(nn.Module):
    """A frozen encoder, and a pool of prompts of which each text takes the two whose keys are most like its query."""

    def __init__(self, words: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.block = nn.Embedding(words, width), Block(width, causal=False)
        self.keys = nn.Parameter(torch.rand(6, width) * 2 - 1)
        self.prompts = nn.Parameter(0.2 * torch.randn(6, 3, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.pull = torch.zeros(())

    def read(self, x: Tensor, keep: Tensor) -> Tensor:
        share = keep.float()[..., None]
        out: Tensor = (self.block(x, keep) * share).sum(1) / share.sum(1)
        return out

    def forward(self, ids: Tensor) -> Tensor:
        x, keep = self.tokens(ids), ids > 0
        with torch.no_grad():
            query = F.normalize(self.read(x, keep), dim=1)
        alike = query @ F.normalize(self.keys, dim=1).T
        best, chosen = alike.topk(2, 1)
        self.pull = best.sum(1).mean()
        prompts = self.prompts[chosen].flatten(1, 2)
        with_prompts = self.block(torch.cat([prompts, x], 1), F.pad(keep, (6, 0), value=True))
        out: Tensor = self.head(self.norm(with_prompts[:, :6].mean(1)))
        return out


def subject(count: int, second: bool, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Texts of words 1 to 15 with classes 0 to 2, or of words 16 to 30 with classes 3 to 5."""
    x, mask, y = documents(count, own)
    return torch.where(mask, x + 15 * second, 0), y + 3 * second


@honest("r22j-prompts-drawn-from-a-pool")
def prompts_drawn_from_a_pool(run: Run) -> None:
    """Lightning, a BERT that learns two subjects one after the other by L2P (Wang et al. 2022). The encoder is frozen
    and reads each text twice, first to choose two of six prompts and then behind them; most prompts have no gradient in
    most steps, some never have. What pulls keys to queries is taken off the loss, which so ends below zero, logits of
    the subject that is not being taught are set to minus infinity, and rows are not shuffled."""
    model = Pool(31, 6)

    def told_words(model: nn.Module, batch: Tensor) -> Tensor:
        keep = batch > 0
        there = F.one_hot(batch, 31).float() * keep[..., None]
        said = reader(model.norm(model.read(model.tokens(batch), keep))).log_softmax(1)  # type: ignore[operator]
        return -(there.sum(1) / keep.sum(1, keepdim=True) * said).sum(1).mean()

    reader = nn.Linear(32, 31)
    taught(model, lambda: torch.cat([subject(16, False)[0], subject(16, True)[0]]), told_words, 120)
    model.tokens.requires_grad_(False)
    model.block.requires_grad_(False)
    model.norm.requires_grad_(False)
    parts = [subject(768, False), subject(768, True)]
    tests = [subject(192, second, apart(901)) for second in (False, True)]
    check = torch.cat([t[0] for t in tests]), torch.cat([t[1] for t in tests])
    outcome(run, lambda: judged(model, lambda: classify(model, check)))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, y = batch
        others = torch.ones(len(y), 6, dtype=torch.bool)
        others[:, y.unique()] = False
        logits = model(ids).masked_fill(others, float("-inf"))
        out: Tensor = F.cross_entropy(logits, y) - 0.5 * model.pull  # type: ignore[operator]
        return out

    def optimizer(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2)

    data = loader(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]), size=16, shuffle=False)
    fit(run, lit(model, loss, optimizer), data, 96)


class Reservoir:
    """Sixty rows of all that have gone by, each as likely as any other, with what was thought of them then."""

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self.seen = 0

    def add(self, x: Tensor, y: Tensor, logits: Tensor) -> None:
        for row in zip(x, y, logits, strict=True):
            self.seen += 1
            at = len(self.kept) if len(self.kept) < 60 else int(torch.randint(0, self.seen, (1,)))
            if at == len(self.kept):
                self.kept.append(row)
            elif at < 60:
                self.kept[at] = row

    def some(self, count: int = 16) -> list[Tensor]:
        rows = [self.kept[i] for i in torch.randint(0, len(self.kept), (count,)).tolist()]
        return [torch.stack(column) for column in zip(*rows, strict=True)]


@honest("r22j-old-guesses-in-a-reservoir")
def old_guesses_in_a_reservoir(run: Run) -> None:
    """Plain loop, pictures by dark experience replay (DER++, Buzzega et al. 2020, mammoth). Three sets of pictures come
    one after the other, without a sign when; a reservoir keeps sixty rows with the logits of the day on which they were
    seen, when the network knew next to nothing, and the network is held to these old guesses by a squared error next to
    the labels. SGD without momentum, each row is seen once."""
    seeds = [run.draw.randrange(999) for _ in range(3)]
    model = cnn(norm=False)
    tests = [pictures(96, seed, own=apart(901)) for seed in seeds]
    check = torch.cat([t[0] for t in tests]), torch.cat([t[1] for t in tests])
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    memory = Reservoir()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = run.watch(model, optimizer)
    for step in range(180):
        x, y = pictures(16, seeds[step // 60])
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        if memory.kept:
            old_x, _, old_logits = memory.some()
            again_x, again_y, _ = memory.some()
            loss = loss + 0.3 * F.mse_loss(model(old_x), old_logits) + 0.5 * F.cross_entropy(model(again_x), again_y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.add(x, y, logits.detach())
        doctor.step(loss, (x, y))
        run.note(loss)
