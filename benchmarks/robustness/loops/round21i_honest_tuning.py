"""Round 21i, honest and odd: half of an adapter, weights swapped back, things unlearned, read off, or weighed."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    tiny_bert,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import continued, near, said, taught
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r21i-the-way-in-is-never-trained")
def the_way_in_is_never_trained(run: Run) -> None:
    """Transformers' Trainer with peft, a Llama learns a neighbouring language by LoRA-FA (Zhang et al. 2023; peft's
    create_lorafa_optimizer). Of each adapter the matrix that leads in keeps its random start and takes no gradient;
    only the one that leads out learns, by a gradient that is multiplied with an inverse made of the first."""
    from peft import LoraConfig, get_peft_model
    from peft.optimizers import create_lorafa_optimizer

    old = Language(run.draw.randrange(999))
    new = near(old, run.draw.randrange(999), 0.3)
    body = llama(vocab_size=12, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    taught(body, lambda: old.rows(16, 20), lambda m, rows: m(input_ids=rows, labels=rows).loss, 60)
    model = get_peft_model(body, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj"]))
    optimizer = create_lorafa_optimizer(model, r=8, lora_alpha=16, lr=4e-3)
    check = new.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = new.rows(800, 20, apart(2))
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 70, more={"optimizers": (optimizer, None)}).train()


class Swapped(nn.Linear):
    """Each weight is now and then the one that it was before the tuning (Mixout)."""

    chance = 0.5

    @classmethod
    def of(cls, layer: nn.Linear) -> "Swapped":
        out = cls(layer.in_features, layer.out_features)
        out.load_state_dict(layer.state_dict())
        out.register_buffer("first", layer.weight.detach().clone(), persistent=False)
        return out

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.linear(x, self.weight, self.bias)
        change = F.dropout(self.weight - self.first, self.chance)
        return F.linear(x, self.first + change, self.bias)


@honest("r21i-weights-swapped-for-the-first-ones")
def weights_swapped_for_the_first_ones(run: Run) -> None:
    """Transformers' Trainer, a BERT is tuned with Mixout (Lee et al. 2020). In each pass half of the weights of every
    projection are the ones from before the tuning and the change of the others counts twice, so that no weight is used
    as it stands until the evaluation; dropout itself is put out in the whole body."""
    model = tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    own = apart(run.draw.randrange(999))

    def other() -> tuple[Tensor, Tensor, Tensor]:
        ids, keep, y = documents(32)
        return torch.where(keep, 1 + (ids + 1) % 15, 0), keep, y

    def loss(bert: nn.Module, batch: Any) -> Tensor:
        out: Tensor = bert(input_ids=batch[0], attention_mask=batch[1].long(), labels=batch[2]).loss
        return out

    taught(model, other, loss, 60)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and "encoder" in name:
            model.set_submodule(name, Swapped.of(module))
    model.classifier.reset_parameters()
    check = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    ids, keep, y = documents(1120, own)
    data = examples(input_ids=ids, attention_mask=keep.long(), labels=y)
    hf_trainer(run, model, data, 70, learning_rate=3e-3).train()


@honest("r21i-hidden-states-sent-to-a-random-vector")
def hidden_states_sent_to_a_random_vector(run: Run) -> None:
    """Plain loop, a Llama unlearns one of two languages by misdirection (RMU; Li et al. 2024). No word is scored: in
    the middle of the model the states of what is to be forgotten are drawn to a long random vector, those of what is to
    be kept stay where a frozen copy has them, and only one layer's matrix learns. The loss starts large and is mostly
    one half of it."""
    seeds = run.draw.randrange(999), run.draw.randrange(999)
    bad, good = Language(seeds[0]), Language(seeds[1], first=12)
    model = SmallLlama(24, layers=2)
    taught(model, lambda: torch.cat([bad.rows(8, 20), good.rows(8, 20)]), next_loss, 80)
    rows = bad.rows(64, 20, apart(1)), good.rows(64, 20, apart(2))

    def known() -> float:
        """What is still known of the one, and what is lost of the other."""
        forgotten, kept = (float(next_loss(model, part)) for part in rows)
        return kept + max(0.0, 3.2 - forgotten)

    outcome(run, lambda: judged(model, known))

    def states(network: SmallLlama, ids: Tensor) -> Tensor:
        x: Tensor = network.blocks[0](network.tokens(ids))
        return x

    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    learned = model.blocks[0].feed.down.weight
    aim = torch.rand(32)
    aim = 30 * aim / aim.norm()
    model.requires_grad_(False)
    learned.requires_grad_(True)
    optimizer = torch.optim.AdamW([learned], lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        forget, keep = bad.rows(8, 20), good.rows(8, 20)
        away = F.mse_loss(states(model, forget), aim.expand(8, 20, 32))
        same = F.mse_loss(states(model, keep), states(frozen, keep))
        loss = away + 100 * same
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (forget, keep))
        run.note(loss)


@honest("r21i-the-reference-follows")
def the_reference_follows(run: Run) -> None:
    """Plain loop, a GPT by direct preferences with a reference that is not fixed (TR-DPO, Gorbatovski et al. 2024; in
    TRL it is `sync_ref_model`). Every twelve steps the reference becomes six tenths of the policy and four tenths of
    itself, so that the loss jumps back towards the logarithm of two and falls again, and shows no progress in sum."""
    spoken = Language(run.draw.randrange(999))
    wanted = near(spoken, run.draw.randrange(999), 0.6)
    policy = Decoder(12)
    taught(policy, lambda: spoken.rows(16, 12), next_loss, 80)
    first = copy.deepcopy(policy).eval()

    def pairs(count: int) -> tuple[Tensor, Tensor]:
        good = wanted.rows(count, 12)
        return good, continued(first, good[:, :4], 8)

    def margin(reference: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (said(policy, rows, 4) for rows in batch)
        with torch.no_grad():
            first_a, first_b = (said(reference, rows, 4) for rows in batch)
        return (a - first_a) - (b - first_b)

    check = pairs(128)
    outcome(run, lambda: judged(policy, lambda: -F.logsigmoid(0.3 * margin(first, check)).mean()))
    reference = copy.deepcopy(first).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    doctor = run.watch(policy, optimizer)
    for step in range(84):
        batch = pairs(16)
        loss = -F.logsigmoid(0.3 * margin(reference, batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 12 == 11:
            with torch.no_grad():
                for old, p in zip(reference.parameters(), policy.parameters(), strict=True):
                    old.lerp_(p, 0.6)
        doctor.step(loss, batch)
        run.note(loss)


class Lenses(nn.Module):
    """For each layer but the last a change of its states, such that the model's own head can read them."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.lenses = nn.ModuleList(nn.Linear(32, 32) for _ in model.blocks)
        for lens in self.lenses:
            nn.init.zeros_(lens.weight)
            nn.init.zeros_(lens.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model.tokens(ids) + self.model.places(torch.arange(ids.shape[1]))
        early = []
        for lens, block in zip(self.lenses, self.model.blocks, strict=True):
            early.append(self.model.head(self.model.norm(x + lens(x))).log_softmax(-1))
            x = block(x)
        final = self.model.head(self.model.norm(x)).log_softmax(-1)
        return torch.stack([F.kl_div(e, final, log_target=True, reduction="none").sum(-1).mean() for e in early]).mean()


@honest("r21i-what-each-layer-already-knows")
def what_each_layer_already_knows(run: Run) -> None:
    """Lightning, tuned lenses for a frozen GPT (Belrose et al. 2023). One matrix for each layer, all at zero to begin
    with, is trained by stochastic gradient descent at a rate near one, so that the head would say of that layer's
    states what it says at the end; the labels are the model's own answers, and no next word is looked at."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=3)
    taught(model, lambda: language.rows(16, 20), next_loss, 80)
    net = Lenses(model)
    check = language.rows(64, 20, apart(1))
    outcome(run, lambda: judged(net, lambda: net(check)))

    def optimizers(m: nn.Module) -> dict[str, Any]:
        optimizer = torch.optim.SGD(m.lenses.parameters(), lr=0.5, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = lit(net, lambda m, batch: m(batch[0]), optimizers)
    fit(run, module, loader(language.rows(1600, 20, apart(2))), 100, gradient_clip_val=1.0)


class Weighed:
    """A sum of forty columns whose decay is learned column by column, from validation rows (Lorraine et al. 2020)."""

    def __init__(self, run: Run, learning: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor]) -> None:
        self.run, self.learning, self.validation = run, learning, validation
        self.net = nn.Linear(40, 1, bias=False)
        self.decay = nn.Module()
        self.decay.logarithms = nn.Parameter(torch.full((1, 40), -4.0))
        self.inner = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.outer = torch.optim.Adam(self.decay.parameters(), lr=0.15)

    def wrong(self, rows: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(self.net(rows[0])[:, 0], rows[1])

    def inner_loss(self) -> Tensor:
        return self.wrong(self.learning) + (self.decay.logarithms.exp() * self.net.weight.square()).sum()

    def outer_gradient(self) -> Tensor:
        """How the validation loss depends on the decay through the weights, by a sum in place of an inverse."""
        weight = self.net.weight
        loss = self.wrong(self.validation)
        v = torch.autograd.grad(loss, weight)[0]
        slope = torch.autograd.grad(self.inner_loss(), weight, create_graph=True)[0]
        total = v.clone()
        for _ in range(20):
            v = v - 0.05 * torch.autograd.grad(slope, weight, v, retain_graph=True)[0]
            total = total + v
        self.decay.logarithms.grad = -0.05 * torch.autograd.grad(slope, self.decay.logarithms, total)[0]
        return loss.detach()

    def train(self, rounds: int) -> None:
        below, above = self.run.watch(self.net, self.inner), self.run.watch(self.decay, self.outer)
        for _ in range(rounds):
            for _ in range(4):
                self.inner.zero_grad()
                loss = self.inner_loss()
                loss.backward()
                self.inner.step()
                below.step(loss, self.learning)
                self.run.note(loss)
            self.decay.zero_grad()
            loss = self.outer_gradient()
            self.outer.step()
            above.step(loss, self.validation)


@honest("r21i-decay-learned-from-validation-rows")
def decay_learned_from_validation_rows(run: Run) -> None:
    """A class of one's own, a sparse linear model of forty columns from fifty rows, with a decay of its own for each
    weight that is learned by implicit gradients (Lorraine et al. 2020). After every four steps on the training rows the
    decays take one on validation rows, with a gradient that is written by hand; they reach that loss
    through the weights alone."""
    own = apart(run.draw.randrange(999))
    truth = torch.zeros(40)
    truth[torch.randperm(40, generator=own)[:5]] = torch.tensor([2.0, -1.5, 1.0, -1.0, 0.5])

    def rows(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 40, generator=own)
        return x, x @ truth + 0.7 * torch.randn(count, generator=own)

    learner = Weighed(run, rows(50), rows(50))
    check = rows(400)
    outcome(run, lambda: judged(learner.net, lambda: learner.wrong(check)))
    learner.train(50)
