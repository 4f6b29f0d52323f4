"""Round 17b, honest and odd: fine-tuning, adapters, pupils and teachers, labels that are asked for."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, update
from benchmarks.robustness.loops.round10b_parts import bare_gpt2
from benchmarks.robustness.loops.round17b_honest_stages import own_loss
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


class Stitched(nn.Module):
    """The lower half of one GPT, a matrix, and the upper half of another."""

    def __init__(self, lower: Decoder, upper: Decoder) -> None:
        super().__init__()
        self.lower, self.upper = lower.requires_grad_(False), upper.requires_grad_(False)
        self.between = nn.Linear(32, 32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.lower.blocks[0](self.lower.tokens(ids) + self.lower.places(torch.arange(ids.shape[1])))
        x = self.upper.blocks[1](self.between(x))
        out: Tensor = self.upper.head(self.upper.norm(x))
        return out


@honest("r17b-two-halves-of-strangers")
def two_halves_of_strangers(run: Run) -> None:
    """Lightning, two GPTs that were trained apart are stitched together (Bansal et al. 2021). The lower block is of one
    and the upper block and head are of the other, both frozen; a single matrix between them is all that learns, one
    weight in forty, and the parts of either model that are not used stay where they are."""
    language = Language(run.draw.randrange(999))
    halves = [Decoder(12, layers=2) for _ in range(2)]
    for half in halves:
        taught(half, lambda: language.rows(12, 20), next_loss, 90)
    net = Stitched(*halves)
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(net, lambda: next_loss(net, check)))
    module = lit(net, lambda m, b: next_loss(m, b[0]), lambda m: torch.optim.AdamW(m.between.parameters(), lr=1e-2))
    fit(run, module, loader(language.rows(480, 20)), 90)


@honest("r17b-tuned-for-each-task-and-put-back")
def tuned_for_each_task_and_put_back(run: Run) -> None:
    """Plain loop and PEFT, training at test time as for ARC (Akyürek et al. 2024). For each of twelve tasks a GPT-2's
    LoRA takes eight steps on that task's eight examples, other rows of the task are answered, and then adapter and
    moments go back to what they were: the loss jumps up with each task, and in the end nothing has changed."""
    from peft import LoraConfig, get_peft_model

    seed = run.draw.randrange(999)
    language = Language(seed)
    base = bare_gpt2(12, n_layer=1)
    taught(base, lambda: language.rows(16, 20), own_loss, 80)
    settings: dict[str, Any] = {"target_modules": ["c_attn", "c_fc", "c_proj"], "fan_in_fan_out": True}
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, **settings))
    tasks = [near(language, seed + 1 + task, 0.8) for task in range(12)]
    data = [(task.rows(8, 20, apart(k)), task.rows(32, 20, apart(99 + k))) for k, task in enumerate(tasks)]
    answered: list[float] = []

    def on(rows: Tensor) -> float:
        return judged(model, lambda: own_loss(model, rows))

    outcome(
        run,
        lambda: sum(answered or [on(asked) for _, asked in data]) / len(data),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    start = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    doctor = run.watch(model, optimizer)
    for shown, asked in data:
        for _ in range(8):
            update(run, doctor, optimizer, own_loss(model, shown), shown)
        answered.append(on(asked))
        model.load_state_dict(start[0])
        optimizer.load_state_dict(start[1])


@honest("r17b-a-few-waves-of-each-change")
def a_few_waves_of_each_change(run: Run) -> None:
    """transformers' Trainer and PEFT, a Llama tuned by FourierFT (Gao et al. 2024). What learns is the height of 64
    frequencies of each matrix, at places drawn once by chance, from which the change of the matrix comes by an inverse
    Fourier transform; the rate is 0.1, far above what a matrix could bear, and one weight in thirty learns."""
    from peft import FourierFTConfig, get_peft_model

    seed = run.draw.randrange(999)
    one = Language(seed, first=4)
    two = near(one, seed + 1, 0.9)
    two.first = 4
    base = llama(vocab_size=16, num_hidden_layers=2)
    taught(base, lambda: one.rows(12, 20), own_loss, 70)
    settings: dict[str, Any] = {"target_modules": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]}
    model = get_peft_model(base, FourierFTConfig(n_frequency=64, scaling=20.0, init_weights=True, **settings))
    check = two.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: own_loss(model, check)))
    rows = two.rows(300, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 70, learning_rate=1e-1).train()


@honest("r17b-asks-for-the-labels-it-lacks")
def asks_for_the_labels_it_lacks(run: Run) -> None:
    """accelerate, active learning of topics from 24 labelled texts and 400 without labels (Settles 2009). Four times
    over the 24 texts of which the model is least sure get their labels, so that what is learned from is on purpose
    nothing like the whole, and the model begins anew from weights drawn anew, with all that it knew thrown away."""
    x, keep, y = documents(424, apart(run.draw.randrange(999)))
    check = documents(200, apart(2))
    known = torch.arange(424) < 24
    models = [Classifier()]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0], batch[1]), batch[2])

    outcome(run, lambda: judged(models[-1], lambda: loss(models[-1], check)))
    for turn in range(4):
        if turn:
            with torch.no_grad():
                chances = models[-1].eval()(x, keep).softmax(-1)
            unsure = torch.special.entr(chances).sum(-1).masked_fill(known, -1)
            known[unsure.topk(24).indices] = True
            models.append(Classifier())
        net = models[-1]
        data = loader(x[known], keep[known], y[known], size=24)
        prepared(run, net, torch.optim.AdamW(net.parameters(), lr=5e-3), data, loss, 40 // (turn + 1))


@honest("r17b-the-first-layer-alone")
def the_first_layer_alone(run: Run) -> None:
    """Lightning, surgical fine-tuning (Lee et al. 2023) of a CNN to pictures from another camera, which are negatives
    and noisy. Against all habit the first convolution is what learns and everything above it is frozen, the head
    included, because only the input has changed: 80 weights of 1508, from 64 pictures."""
    seed = run.draw.randrange(999)
    net = cnn(norm=False)
    taught(net, lambda: pictures(32, seed), classify, 120)
    net.requires_grad_(False)
    net[0].requires_grad_(True)

    def negatives(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, seed, own=own)
        return 1 - x + 0.1 * torch.randn(x.shape, generator=own), y

    class_outcome(run, net, negatives(256, apart(1)))
    fit(
        run,
        lit(net, classify, lambda m: torch.optim.Adam(m[0].parameters(), lr=3e-2)),
        loader(*negatives(64)),
        250,
    )


@honest("r17b-teacher-graded-by-its-pupil")
def teacher_graded_by_its_pupil(run: Run) -> None:
    """Plain loop, topics of texts with 48 labels by meta pseudo labels (Pham et al. 2021). The pupil never sees a true
    label, only what the teacher says of other texts; the teacher's loss on its own words is multiplied by how much the
    pupil's step with them helped on the labelled texts, a small number of either sign, next to its usual loss."""
    own = apart(run.draw.randrange(999))
    labelled, others = documents(48, own), documents(480, own)
    teacher, pupil = Classifier(), Classifier()
    check = documents(200, apart(2))
    outcome(run, lambda: judged(pupil, lambda: F.cross_entropy(pupil(check[0], check[1]), check[2])))
    teaching, learning = adam(teacher, 3e-3), adam(pupil, 3e-3)
    doctor, other = run.watch(pupil, learning), run.watch(teacher, teaching)
    for _ in range(130):
        at, few = torch.randint(0, 480, (32,)), torch.randint(0, 48, (24,))
        x, keep = others[0][at], others[1][at]
        a, keep_a, y = (column[few] for column in labelled)
        logits = teacher(x, keep)
        said = torch.distributions.Categorical(logits=logits.detach()).sample()
        with torch.no_grad():
            before = F.cross_entropy(pupil(a, keep_a), y)
        update(run, doctor, learning, F.cross_entropy(pupil(x, keep), said), (x, keep, said))
        with torch.no_grad():
            helped = before - F.cross_entropy(pupil(a, keep_a), y)
        loss = helped * F.cross_entropy(logits, said) + F.cross_entropy(teacher(a, keep_a), y)
        update(run, other, teaching, loss, (x, keep, a, keep_a, y))


@honest("r17b-dropout-at-first-alone")
def dropout_at_first_alone(run: Run) -> None:
    """transformers' Trainer, BERT with early dropout (Liu et al. 2023), which helps nets that fit too little. After a
    third of the run a callback sets all dropout to zero for good, so that the loss falls at once without an update
    that is better than others, and most of the training goes without what the configuration says."""
    from transformers import TrainerCallback

    model = tiny_bert(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.0)

    class Ends(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            for module in given["model"].modules():
                if isinstance(module, nn.Dropout) and state.global_step >= 35:
                    module.p = 0.0

    def rows(count: int, own: torch.Generator) -> dict[str, Tensor]:
        x, keep, y = documents(count, own)
        return {"input_ids": x, "attention_mask": keep.long(), "labels": y}

    check = rows(200, apart(2))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    data = examples(**rows(512, apart(run.draw.randrange(999))))
    hf_trainer(run, model, data, 105, learning_rate=2e-3, more={"callbacks": [Ends()]}).train()
