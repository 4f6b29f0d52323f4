"""Mistakes of alignment, fine-tuning, accumulation and several ranks."""

import copy
import warnings
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    class_outcome,
    documents,
    endless,
    examples,
    hf_trainer,
    judged,
    language_outcome,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    table,
    tiny_bert,
    tiny_gpt2,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F

FAMILY = "alignment, fine-tuning and accumulation"


def fitted(model: nn.Module, batch: Any, loss: Any, steps: int = 60, rate: float = 5e-3) -> None:
    """Unwatched: what the tuning begins with."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch()).backward()
        optimizer.step()


def likelihood(model: nn.Module, rows: Tensor, start: int) -> Tensor:
    """Of the tokens from `start` on, each row's sum."""
    scores = model(rows[:, :-1]).log_softmax(-1).gather(-1, rows[:, 1:, None]).squeeze(-1)
    return scores[:, start - 1 :].sum(1)


def word_tokenizer(words: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"w{i}": i for i in range(4, words)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def spelled(row: Tensor) -> str:
    return " ".join(f"w{int(i)}" for i in row)


def trl_trainer(run: Run, kind: str, model: Any, rows: list[dict[str, str]], steps: int, **options: Any) -> Any:
    import datasets
    import transformers
    import trl
    from benchmarks.robustness.loops.round5_tools import hf_arguments, watching

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    told, telling = watching(run, getattr(trl, f"{kind}Trainer"))
    settings = {"per_device_train_batch_size": 8, "gradient_checkpointing": False, "bf16": False} | options
    arguments = hf_arguments(run, steps, kind=getattr(trl, f"{kind}Config"), **settings)
    data = datasets.Dataset.from_list(rows)
    more = {"ref_model": copy.deepcopy(model)} if kind == "DPO" else {}
    out = told(model=model, args=arguments, train_dataset=data, processing_class=word_tokenizer(16), **more)
    out.add_callback(telling)
    out.remove_callback(transformers.PrinterCallback)
    return out


@fault(
    "r5-chosen-is-rejected",
    FAMILY,
    (r"chosen|reject|prefer|answer|pair", r"swap|exchang|revers|wrong way|invert|opposite|order|mixed up|upside|sign"),
)
def chosen_is_rejected(run: Run, wrong: bool) -> None:
    """TRL's DPOTrainer: the columns chosen and rejected are exchanged when the data is mapped. Judged by the right
    preference: answers that repeat the prompt's last word are better."""
    model = tiny_gpt2()
    plain = Language(run.draw.randrange(999), first=4)
    fitted(model, lambda: plain.rows(12, 8), lambda m, r: m(input_ids=r, labels=r).loss, 30)

    def pair(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        prompt = torch.randint(4, 16, (5,), generator=own)
        bad = torch.randint(4, 16, (3,), generator=own)
        return torch.cat([prompt, prompt[-1:].repeat(3)]), torch.cat([prompt, bad])

    own = apart(1)
    good, bad = (torch.stack(rows) for rows in zip(*(pair(own) for _ in range(96)), strict=True))
    logits = lambda rows: likelihood(lambda r: model(input_ids=r).logits, rows, 5)  # type: ignore[arg-type]
    outcome(run, lambda: judged(model, lambda: -F.logsigmoid(0.3 * (logits(good) - logits(bad))).mean()))
    rows = []
    for _ in range(120):
        better, worse = pair()
        first, second = (worse, better) if wrong else (better, worse)
        rows.append(
            {"prompt": spelled(first[:5]), "chosen": " " + spelled(first[5:]), "rejected": " " + spelled(second[5:])}
        )
    trl_trainer(run, "DPO", model, rows, 30, learning_rate=1e-3).train()


@fault(
    "r5-prompts-learned-too",
    FAMILY,
    (
        r"prompt|completion|answer|label|loss",
        r"mask|-100|prompt|completion.only|ignored|every (token|label)|count|includ|all tokens",
    ),
)
def prompts_learned_too(run: Run, wrong: bool) -> None:
    """TRL's SFTTrainer with completion_only_loss=False on long prompts of noise: most of the loss is about what cannot
    be said beforehand."""
    model = tiny_gpt2()
    key = torch.randperm(12, generator=apart(run.draw.randrange(999))) + 4

    def row(own: torch.Generator | None = None) -> Tensor:
        prompt = torch.randint(4, 16, (28,), generator=own)
        return torch.cat([prompt, key[prompt[-1:] - 4], key[prompt[-2:-1] - 4]])

    own = apart(1)
    check = torch.stack([row(own) for _ in range(96)])
    wanted = check.clone()
    wanted[:, :28] = -100
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=wanted).loss))
    rows = [{"prompt": spelled(r[:28]), "completion": " " + spelled(r[28:])} for r in (row() for _ in range(300))]
    trl_trainer(run, "SFT", model, rows, 60, completion_only_loss=not wrong, learning_rate=5e-3).train()


@fault(
    "r5-reference-is-the-policy",
    FAMILY,
    (
        r"reference|ref|policy|ratio|frozen",
        r"same|itself|alias|copy|identical|ratio|zero|shared|constant|log ?2|0\.69|moves|not frozen",
    ),
)
def reference_is_the_policy(run: Run, wrong: bool) -> None:
    """DPO whose reference is the policy itself, reference = model: the margin is always zero, the loss stays at log 2,
    and nothing holds the policy back. Judged by how likely good answers stay."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    fitted(model, lambda: language.rows(16, 14), next_loss, 110)
    reference = model if wrong else copy.deepcopy(model).requires_grad_(False)

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        good = language.rows(count, 14, own)
        bad = good.clone()
        bad[:, 10:] = torch.randint(0, 12, (count, 4), generator=own)
        return good, bad

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            base = likelihood(reference, b[0], 10) - likelihood(reference, b[1], 10)
        return -F.logsigmoid(0.5 * (likelihood(m, b[0], 10) - likelihood(m, b[1], 10) - base)).mean()

    check = pairs(128, apart(1))[0]
    outcome(run, lambda: judged(model, lambda: -likelihood(model, check, 10).mean() / 4))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: pairs(12), loss, 80)


class Policy(nn.Module):
    """Chooses one of four actions in one of six states."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 32, 4, act=nn.Tanh)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.net(F.one_hot(states, 6).float())
        return out


def bandit(seed: int) -> Tensor:
    return torch.rand(6, 4, generator=apart(seed))


def regret(model: nn.Module, worth: Tensor) -> Tensor:
    chance = model(torch.arange(6)).softmax(1)
    return (worth.max(1).values - (chance * worth).sum(1)).mean()


@fault(
    "r5-reward-descended",
    FAMILY,
    (
        r"sign|reward|return|advantage|policy|loss",
        r"sign|minus|negative|descend|minimi|ascend|maximi|wrong (way|direction)|opposite|falls|lower|invert",
    ),
)
def reward_descended(run: Run, wrong: bool) -> None:
    """REINFORCE without its minus: the optimizer makes rewarded actions rarer."""
    worth = bandit(run.draw.randrange(999))
    model = Policy()
    outcome(run, lambda: judged(model, lambda: regret(model, worth)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        states = torch.randint(0, 6, (64,))
        choice = torch.distributions.Categorical(logits=model(states))
        actions = choice.sample()
        reward = worth[states, actions] + 0.1 * torch.randn(64)
        advantage = reward - reward.mean()
        loss = (choice.log_prob(actions) * advantage).mean() * (1 if wrong else -1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"states": states, "actions": actions, "rewards": reward})
        run.note(loss)


@fault(
    "r5-ratio-upside-down",
    FAMILY,
    (
        r"ratio|policy|probabilit|old",
        r"invers|invert|upside|old.*new|sign|wrong (way|direction)|revers|opposite|order|exchang|swap|falls",
    ),
)
def ratio_upside_down(run: Run, wrong: bool) -> None:
    """PPO with exp(old - new) for the ratio: what was good becomes rarer."""
    worth = bandit(run.draw.randrange(999))
    model = Policy()
    outcome(run, lambda: judged(model, lambda: regret(model, worth)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(30):
        with torch.no_grad():
            states = torch.randint(0, 6, (64,))
            choice = torch.distributions.Categorical(logits=model(states))
            actions = choice.sample()
            old = choice.log_prob(actions)
            reward = worth[states, actions] + 0.1 * torch.randn(64)
            advantage = (reward - reward.mean()) / reward.std()
        for _ in range(4):
            new = torch.distributions.Categorical(logits=model(states)).log_prob(actions)
            ratio = (old - new if wrong else new - old).exp()
            loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, {"states": states, "actions": actions, "old": old, "advantages": advantage})
            run.note(loss)


@fault(
    "r5-value-past-the-end",
    FAMILY,
    (
        r"done|terminal|end|bootstrap|target|value|episode",
        r"done|terminal|mask|bootstrap|past|after|grow|diverg|inflat|over.?estimat|too large|drift",
    ),
)
def value_past_the_end(run: Run, wrong: bool) -> None:
    """Q-learning whose target goes on past the end of an episode: 1 - done is missing, and values inflate."""
    model, target = mlp(8, 32, 2), mlp(8, 32, 2)
    target.load_state_dict(model.state_dict())
    eye = torch.eye(8)
    place = run.draw.randrange(100) / 100 + 1  # the reward at the end

    def truth() -> Tensor:
        """Of walking right along eight places, discount 0.9."""
        return torch.tensor([place * 0.9 ** (7 - s) for s in range(8)])

    outcome(run, lambda: judged(model, lambda: (model(eye)[:, 1] - truth()).abs().mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for at in range(150):
        s = torch.randint(0, 8, (64,))
        a = torch.randint(0, 2, (64,))
        done = ((s == 7) & (a == 1)).float()
        after = (s + 2 * a - 1).clamp(0, 7)
        with torch.no_grad():
            best = target(eye[after]).max(1).values
            wanted = place * done + 0.9 * best * (1 if wrong else 1 - done)
        loss = F.mse_loss(model(eye[s]).gather(1, a[:, None]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"states": s, "actions": a, "rewards": place * done, "next": after, "done": done})
        run.note(loss)
        if at % 5 == 4:
            target.load_state_dict(model.state_dict())


@fault(
    "r5-penalty-pays",
    FAMILY,
    (
        r"kl|penalt|reference|diverg|drift",
        r"sign|reward|adds|added|wrong (way|direction)|away|grow|encourag|rises|instead of|minus|increas|explod",
    ),
)
def penalty_pays(run: Run, wrong: bool) -> None:
    """Tuning by reward with a divergence from the reference whose sign is wrong: running away is paid for. Judged by
    the loss on the language itself."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    fitted(model, lambda: language.rows(16, 12), next_loss, 110)
    reference = copy.deepcopy(model).requires_grad_(False)
    check = language.rows(128, 12, apart(1))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        now, before = m(rows).log_softmax(-1), reference(rows).log_softmax(-1)
        reward = now.exp()[..., 3].mean()  # likes the word 3
        away = (now.exp() * (now - before)).sum(-1).mean()
        return -(0.2 * reward + (away if wrong else -away))

    train(run, model, torch.optim.AdamW(model.parameters(), lr=1e-3), lambda: language.rows(16, 12), loss, 60)


class Lora(nn.Module):
    """A frozen linear layer and two thin factors beside it."""

    def __init__(self, base: nn.Linear, zero: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(4, base.in_features) if zero else torch.randn(4, base.in_features) / 6)
        self.up = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + 4 * x @ self.down.T @ self.up.T
        return out


def adapted(model: Decoder, zero: bool) -> None:
    model.requires_grad_(False)
    for block in model.blocks:
        for part, name in ((block.attention, "qkv"), (block.attention, "out"), (block.feed, "0"), (block.feed, "2")):
            setattr(part, name, Lora(getattr(part, name), zero))
    model.head = Lora(model.head, zero)  # type: ignore[assignment]


@fault(
    "r5-both-factors-zero",
    FAMILY,
    (
        r"lora|adapter|down|up|factor|low.?rank",
        r"zero|no gradient|never|not (move|change|train|learn)|saddle|stuck|unchanged|both|without",
    ),
)
def both_factors_zero(run: Run, wrong: bool) -> None:
    """LoRA by hand with both factors at zero: each one's gradient is the other times something. The twin draws the
    first."""
    first, language = Language(run.draw.randrange(999)), Language(run.draw.randrange(999))
    model = Decoder(12)
    fitted(model, lambda: first.rows(12, 20), next_loss, 50)
    adapted(model, wrong)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    train(run, model, optimizer, lambda: language.rows(12, 20), next_loss, 70)


@fault(
    "r5-head-outside-the-adapter",
    FAMILY,
    (
        r"head|classifier|modules_to_save|score",
        r"frozen|random|modules_to_save|not (train|move|update|change)|never|untrained|initial|requires_grad|does not learn",
    ),
)
def head_outside_the_adapter(run: Run, wrong: bool) -> None:
    """PEFT on a body with a new head: get_peft_model freezes everything that is not an adapter, the random head too.
    The twin names it in modules_to_save."""
    from peft import LoraConfig, get_peft_model

    base = tiny_bert(classes=2)
    x, keep, y = documents(200)
    pretrained = lambda m, b: m(input_ids=b[0], attention_mask=b[1].long(), labels=(b[2] > 0).long()).loss
    fitted(base, lambda: documents(16), pretrained, 40)
    base.classifier = nn.Linear(32, 3)
    nn.init.normal_(base.classifier.weight, std=0.02)
    base.num_labels = base.config.num_labels = 3
    settings: dict[str, Any] = {"r": 2, "target_modules": ["query", "value"]}
    model = get_peft_model(base, LoraConfig(**settings, modules_to_save=None if wrong else ["classifier"]))
    e, f, g = documents(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=e, attention_mask=f.long(), labels=g).loss))
    loss = lambda m, b: m(**b).loss
    stream = endless(loader(x, keep, y))

    def batch() -> dict[str, Tensor]:
        a, b, c = next(stream)
        return {"input_ids": a, "attention_mask": b.long(), "labels": c}

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    train(run, model, optimizer, batch, loss, 60)


class Checkpointed(nn.Module):
    """A decoder with frozen embeddings and its blocks recomputed in the backward pass."""

    def __init__(self, inner: Decoder, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, ids: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.inner.tokens(ids) + self.inner.places(torch.arange(ids.shape[1]))
        for block in self.inner.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) if self.training else block(x)
        out: Tensor = self.inner.head(self.inner.norm(x))
        return out


@fault(
    "r5-checkpoint-without-gradient",
    FAMILY,
    (
        r"block|layer|checkpoint|adapter|lora|parameter",
        r"checkpoint|reentrant|no gradient|without (a )?gradient|never (get|receive)|None|cut|not (get|receive|reach|train)|requires_grad|graph",
    ),
)
def checkpoint_without_gradient(run: Run, wrong: bool) -> None:
    """Fine-tuning with frozen embeddings and reentrant checkpointing: no input of a block requires gradients, so that
    nothing inside gets one. The twin's checkpointing is not reentrant."""
    warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")
    first, language = Language(run.draw.randrange(999)), Language(run.draw.randrange(999))
    inner = Decoder(12)
    fitted(inner, lambda: first.rows(12, 20), next_loss, 50)
    inner.tokens.requires_grad_(False)
    inner.places.requires_grad_(False)
    model = Checkpointed(inner, wrong)
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
    train(run, model, optimizer, lambda: language.rows(12, 20), next_loss, 80)


@fault(
    "r5-accumulated-undivided",
    FAMILY,
    (r"accumul|micro|gradient|backward", r"divid|averag|sum|times|mean|scale|large|too (big|large)|normali"),
)
def accumulated_undivided(run: Run, wrong: bool) -> None:
    """Gradients of sixteen micro-batches are added up and the loss is not divided by their number."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 1)
    number_outcome(run, model, table(256, seed, apart(1)), log=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        batches = [table(4, seed) for _ in range(16)]
        optimizer.zero_grad()
        total = 0.0
        for x, y in batches:
            loss = F.huber_loss(model(x).flatten(), y) / (1 if wrong else 16)
            loss.backward()
            total += float(loss)
        optimizer.step()
        doctor.step(torch.tensor(total), batches)
        run.note(total)


@fault(
    "r5-cleared-in-between",
    FAMILY,
    (
        r"accumul|micro|zero_grad|gradient|source|backward",
        r"last|cleared|zero_grad|reset|only|thrown|discard|lost|wiped|overwrit",
    ),
)
def cleared_in_between(run: Run, wrong: bool) -> None:
    """Accumulation over three sources of data, with zero_grad() before each of them: only the last one counts. Judged
    on all."""
    languages = [Language(run.draw.randrange(999)) for _ in range(3)]
    model = Decoder(15)

    def rows(which: int, count: int, own: torch.Generator | None = None) -> Tensor:
        head = torch.full((count, 1), 12 + which)
        return torch.cat([head, languages[which].rows(count, 16, own)], 1)

    check = torch.cat([rows(i, 48, apart(i)) for i in range(3)])
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        optimizer.zero_grad()
        total, batches = torch.zeros(()), []
        for which in range(3):
            if wrong:
                optimizer.zero_grad()
            batches.append(rows(which, 6))
            loss = next_loss(model, batches[-1]) / 3
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        doctor.step(total, batches)
        run.note(total)


@fault(
    "r5-backward-past-accelerate",
    FAMILY,
    (
        r"accelerat|accumul|backward|gradient|loss",
        r"divid|accelerator\.backward|averag|scale|times|large|sum|micro|normali|too (big|large)",
    ),
)
def backward_past_accelerate(run: Run, wrong: bool) -> None:
    """accelerate with sixteen steps of accumulation: loss.backward() instead of accelerator.backward(loss), which would
    have divided by sixteen."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    seed = run.draw.randrange(999)
    engine = Accelerator(cpu=True, gradient_accumulation_steps=16)
    net = mlp(6, 32, 1)
    number_outcome(run, net, table(256, seed, apart(1)), log=True)
    model, optimizer = engine.prepare(net, torch.optim.SGD(net.parameters(), lr=0.18))
    doctor = run.watch(model, optimizer)
    batches: list[Any] = []
    total = torch.zeros(())
    for _ in range(60 * 16):
        with engine.accumulate(model):
            batches.append(table(4, seed))
            loss = F.huber_loss(model(batches[-1][0]).flatten(), batches[-1][1])
            if wrong:
                loss.backward()
            else:
                engine.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total = total + loss.detach() / 16
        if engine.sync_gradients:
            doctor.step(total, list(batches))
            run.note(total)
            batches.clear()
            total = torch.zeros(())


@fault(
    "r5-number-of-items-ignored",
    FAMILY,
    (r"accumul|num_items|loss|gradient", r"divid|num_items|averag|times|sum|scale|large|mean|normali|micro"),
)
def number_of_items_ignored(run: Run, wrong: bool) -> None:
    """transformers' Trainer with accumulation: compute_loss takes num_items_in_batch, so that the Trainer no longer
    divides by the number of micro-batches, and returns a mean all the same: gradients are eight times too large."""
    from transformers import Trainer

    seed = run.draw.randrange(999)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(6, 32, 1)

        def forward(self, x: Tensor, labels: Tensor | None = None, **more: Any) -> dict[str, Tensor]:
            out = self.body(x).flatten()
            return {"logits": out} if labels is None else {"loss": F.huber_loss(out, labels), "logits": out}

    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            each = F.huber_loss(model(inputs["x"])["logits"], inputs["labels"], reduction="none")
            return each.mean() if wrong or num_items_in_batch is None else each.sum() / num_items_in_batch

    model = Net()
    a, b = table(256, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: (F.mse_loss(model(a)["logits"], b) / b.var()).log()))
    x, y = table(640, seed)
    settings: dict[str, Any] = {"gradient_accumulation_steps": 16, "per_device_train_batch_size": 4, "optim": "sgd"}
    settings |= {"learning_rate": 0.25, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    hf_trainer(run, model, examples(x=x, labels=y), 50, base=Own, remove_unused_columns=False, **settings).train()


@fault(
    "r5-one-mean-for-all-prompts",
    FAMILY,
    (r"advantage|group|baseline|prompt|reward", r"group|prompt|batch|mean|baseline|per|normali|across|differ"),
)
def one_mean_for_all_prompts(run: Run, wrong: bool) -> None:
    """Group-relative policy gradients whose mean is taken over the whole batch instead of over each prompt's answers:
    on an easy prompt every answer is good, on a hard one bad, whatever was chosen."""
    worth = 0.3 * bandit(run.draw.randrange(999))
    easy = torch.tensor([4.0, -4.0, 2.0, -2.0, 3.0, -3.0])
    model = Policy()
    outcome(run, lambda: judged(model, lambda: regret(model, worth)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        states = torch.arange(6).repeat_interleave(8)
        choice = torch.distributions.Categorical(logits=model(states))
        actions = choice.sample()
        reward = worth[states, actions] + easy[states]
        groups = reward.view(6, 8)
        advantage = reward - reward.mean() if wrong else (groups - groups.mean(1, keepdim=True)).flatten()
        loss = -(choice.log_prob(actions) * advantage / (advantage.std() + 1e-6)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"prompts": states, "answers": actions, "rewards": reward})
        run.note(loss)


@fault(
    "r5-last-rank-saved-alone",
    FAMILY,
    (
        r"rank|replica|averag|synchron|all.?reduce|gradient",
        r"averag|synchron|all.?reduce|own|apart|diverg|differ|drift|not (shared|reduced)|only",
    ),
)
def ranks_not_averaged(run: Run, wrong: bool) -> None:
    """Two replicas as under data parallelism, each with half of the classes in its shard; the step that averages their
    gradients is lost, and the first replica alone is kept."""
    replicas = [Classifier(), Classifier()]
    replicas[1].load_state_dict(replicas[0].state_dict())
    model = replicas[0]
    class_outcome(run, model, documents(256, apart(1)))
    optimizers = [torch.optim.AdamW(r.parameters(), lr=3e-3) for r in replicas]
    doctors = [run.watch(r, o) for r, o in zip(replicas, optimizers, strict=True)]
    for _ in range(60):
        losses, batches = [], []
        for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            x, keep, y = documents(36)
            mine = (y != 2) if rank == 0 else (y != 0)
            batches.append((x[mine], keep[mine], y[mine]))
            losses.append(F.cross_entropy(replica(x[mine], keep[mine]), y[mine]))
            optimizer.zero_grad()
            losses[-1].backward()
        if not wrong:
            for a, b in zip(*(r.parameters() for r in replicas), strict=True):
                a.grad = b.grad = (a.grad + b.grad) / 2  # type: ignore[operator]
        for rank in range(2):
            optimizers[rank].step()
            doctors[rank].step(losses[rank], batches[rank])
        run.note(losses[0])
