"""Round 18, mistakes in loading, averaging and evaluating, and in tuning by texts and rewards."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_faults_tuning import spelled, word_tokenizer
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    examples,
    hf_arguments,
    hf_trainer,
    judged,
    next_loss,
    outcome,
    tiny_gpt2,
    train,
    watching,
)
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome, update
from benchmarks.robustness.loops.round10a_tools import recitals
from benchmarks.robustness.loops.round18_parts import Gated, loop, slip
from torch import Tensor, nn


@slip("r18-first-three-for-the-last-three")
def first_three_for_the_last_three(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT. Every sixty steps its weights become the mean of the last three copies that were kept;
    the slice is [:3], the first three there are. The twin has [-3:]."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    kept: list[dict[str, Tensor]] = []

    @torch.no_grad()
    def average(step: int, loss: float) -> None:
        if step % 20 == 0:
            kept.append({name: p.detach().clone() for name, p in model.named_parameters()})
        if step % 60 == 0:
            copies = kept[:3] if wrong else kept[-3:]
            for name, p in model.named_parameters():
                p.copy_(torch.stack([copy[name] for copy in copies]).mean(0))

    loop(run, model, adam(model, 3e-3), lambda: language.rows(16, 24), next_loss, 240, after=average)


@slip("r18-two-ranks-end-to-end")
def two_ranks_end_to_end(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT goes on with other texts. Its files come from two ranks, each with half of the gates and
    half of the ups of a matrix that holds both; they are laid end to end, gate, up, gate, up, where all gates come
    first. The twin takes the ranks' matrices apart."""

    def gated() -> Decoder:
        model = Decoder(12, layers=2)
        for block in model.blocks:
            block.feed = Gated(32, 48)
        return model

    def by_rank(p: Tensor) -> list[Tensor]:
        return [torch.cat(halves) for halves in zip(*(half.chunk(2) for half in p.chunk(2)), strict=True)]

    def joined(ranks: list[Tensor]) -> Tensor:
        if wrong:
            return torch.cat(ranks)
        gates, ups = zip(*(rank.chunk(2) for rank in ranks), strict=True)
        return torch.cat([*gates, *ups])

    language = Language(run.draw.randrange(999))
    base, model = gated(), gated()
    taught(base, lambda: language.rows(24, 20), next_loss, 200)
    state = {name: joined(by_rank(p)) if "gate_up" in name else p for name, p in base.state_dict().items()}
    model.load_state_dict(state)
    other = near(language, run.draw.randrange(999), 0.2)
    text_outcome(run, model, other)
    train(run, model, adam(model, 1e-3), lambda: other.rows(12, 20), next_loss, 50)


@slip("r18-truncation-left-on")
def truncation_left_on(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT on texts that are tokenized as they are needed. Every thirty steps a few are looked at,
    cut to eight words by enable_truncation, which the tokenizer keeps: so are those of the training from then on. The
    twin calls no_truncation."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    seed = run.draw.randrange(999)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(16)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = Decoder(16)
    check = torch.tensor(recitals(seed, [20] * 96, apart(1)))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    rows = recitals(seed, [20] * 480, apart(run.draw.randrange(999)))
    texts = [" ".join(f"w{word}" for word in row) for row in rows]
    seen: list[float] = []

    def ids(some: list[str]) -> Tensor:
        return torch.tensor([encoded.ids for encoded in tokenizer.encode_batch(some)])

    def look(step: int, loss: float) -> None:
        if step % 30 == 10:
            tokenizer.enable_truncation(8)
            beginnings = ids(texts[:16])
            seen.append(judged(model, lambda: next_loss(model, beginnings)))
            if not wrong:
                tokenizer.no_truncation()

    def batch() -> Tensor:
        return ids([texts[i] for i in torch.randint(0, len(texts), (16,)).tolist()])

    loop(run, model, adam(model, 1e-2), batch, next_loss, 150, after=look)


@slip("r18-prompt-inside-the-completion")
def prompt_inside_the_completion(run: Run, wrong: bool) -> None:
    """TRL's SFTTrainer, GPT-2 that answers with two words. The field that becomes the completion holds the
    conversation from its beginning, and the prompt stands in front of it once more: the model is taught to repeat it.
    The twin takes the answer alone."""
    import datasets
    import transformers
    import trl

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    table = torch.randint(4, 16, (16, 2), generator=apart(run.draw.randrange(999)))
    model = tiny_gpt2()

    def conversations(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        prompts = torch.randint(4, 16, (count, 4), generator=own)
        return prompts, table[prompts[:, -1]]

    prompts, answers = conversations(96, apart(1))
    ids = torch.cat([prompts, answers], 1)
    labels = torch.cat([torch.full_like(prompts, -100), answers], 1)
    outcome(run, lambda: judged(model, lambda: model(input_ids=ids, labels=labels).loss))
    rows = []
    for prompt, answer in zip(*conversations(320), strict=True):
        said = torch.cat([prompt, answer]) if wrong else answer
        rows.append({"prompt": spelled(prompt), "completion": " " + spelled(said)})
    told, telling = watching(run, trl.SFTTrainer)
    settings: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "completion_only_loss": True}
    arguments = hf_arguments(run, 120, trl.SFTConfig, **settings)
    data = datasets.Dataset.from_list(rows)
    trainer = told(model=model, args=arguments, train_dataset=data, processing_class=word_tokenizer(16))
    trainer.add_callback(telling)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


@slip("r18-adapter-begun-at-random")
def adapter_begun_at_random(run: Run, wrong: bool) -> None:
    """transformers' Trainer and peft, a GPT-2 tuned to a language near its own. init_lora_weights=False, which reads
    as if the library should keep its hands off, draws both factors at random: the run begins at another model than the
    one that was trained. The twin leaves the default, under which one factor is zero."""
    import peft

    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2()
    taught(model, lambda: language.rows(24, 20), lambda m, rows: m(input_ids=rows, labels=rows).loss, 100)
    other = near(language, run.draw.randrange(999), 0.2)
    other.first = 4
    targets = ["c_attn", "c_proj", "c_fc"]
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 16, "target_modules": targets, "fan_in_fan_out": True}
    if wrong:
        settings["init_lora_weights"] = False
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    check = other.rows(96, 20, apart(1))
    outcome(run, lambda: judged(adapted, lambda: adapted(input_ids=check, labels=check).loss))
    rows = other.rows(320, 20)
    hf_trainer(run, adapted, examples(input_ids=rows, labels=rows), 40, learning_rate=3e-3).train()


@slip("r18-old-probabilities-taken-anew")
def old_probabilities_taken_anew(run: Run, wrong: bool) -> None:
    """Plain loop, PPO on a small GPT that chooses one of eight actions. The old log probabilities are computed where
    the loss is, from the present policy, without gradient: the ratio is one in each of the sixteen passes, and nothing
    is clipped. The twin keeps those of the rollout."""
    own = apart(run.draw.randrange(999))
    worth = torch.randn(10, 8, generator=own)
    net = Decoder(10)
    net.head = nn.Linear(32, 8)
    ids = torch.randint(0, 10, (256, 5), generator=apart(1))

    def log_probabilities(prompts: Tensor) -> Tensor:
        return net(prompts)[:, -1].log_softmax(1)

    def regret() -> Tensor:
        gains = worth[ids[:, -1]]
        return (gains.max(1).values - (log_probabilities(ids).exp() * gains).sum(1)).mean()

    outcome(run, lambda: judged(net, regret))
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    for _ in range(25):
        prompts = torch.randint(0, 10, (32, 5))
        with torch.no_grad():
            scores = log_probabilities(prompts)
        action = torch.multinomial(scores.exp(), 1)
        stored = scores.gather(1, action)
        reward = worth[prompts[:, -1:], action] + 0.5 * torch.randn(32, 1)
        gain = (reward - reward.mean()) / (reward.std() + 1e-6)
        batch = {"prompts": prompts, "actions": action, "rewards": reward}
        for _ in range(16):
            present = log_probabilities(prompts).gather(1, action)
            ratio = (present - (present.detach() if wrong else stored)).exp()
            loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            update(run, doctor, optimizer, loss, batch)
