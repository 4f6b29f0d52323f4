"""Round 7b, mistakes of evaluation, of averages, and of what a trainer keeps."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    cnn,
    examples,
    hf_trainer,
    judged,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Codes, Shifted, moved
from benchmarks.robustness.loops.round7b_tools import (
    EVALUATION,
    adam,
    corridor,
    near,
    q_network,
    taught,
    text_outcome,
    update,
)
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r7-target-never-follows",
    EVALUATION,
    (
        r"target|copy|average|polyak|slow|bootstrap",
        r"never|not (mov|updat|follow|chang|copied)|stand|still|constant|stale|rebind|in.place|unchanged|fixed|frozen|lag",
    ),
)
def target_never_follows(run: Run, wrong: bool) -> None:
    """Q-learning in a corridor. The target network should follow slowly, but `t = 0.9 * t + 0.1 * p` in the loop over both
    networks' parameters only gives another tensor to the name t. The twin writes with copy_."""
    gain = run.draw.randrange(100) / 100 + 1
    model = q_network()
    target, eye = copy.deepcopy(model), torch.eye(8)
    outcome(run, corridor(model, gain))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(200):
        s, a = torch.randint(0, 8, (64,)), torch.randint(0, 2, (64,))
        done = ((s == 7) & (a == 1)).float()
        after = (s + 2 * a - 1).clamp(0, 7)
        with torch.no_grad():
            wanted = gain * done + 0.9 * target(eye[after]).max(1).values * (1 - done)
        loss = F.mse_loss(model(eye[s]).gather(1, a[:, None]).squeeze(1), wanted)
        update(run, doctor, optimizer, loss, {"states": s, "actions": a, "next": after, "done": done})
        with torch.no_grad():
            for t, p in zip(target.parameters(), model.parameters(), strict=True):
                if wrong:
                    t = 0.9 * t + 0.1 * p
                else:
                    t.copy_(0.9 * t + 0.1 * p)


@fault(
    "r7-plateau-of-a-growing-sum",
    EVALUATION,
    (
        r"rate|lr\b|schedul|plateau",
        r"plateau|sum|reset|grow|too (often|early|small|low|soon)|collaps|vanish|tiny|cut|fell|falls|decay|hardly|shrink|patience|metric",
    ),
)
def plateau_of_a_growing_sum(run: Run, wrong: bool) -> None:
    """accelerate. ReduceLROnPlateau is given `total`, the sum of the epoch's losses, which nobody sets back to zero: it
    only grows, and the rate is cut at every epoch. The twin sets it back."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    engine = Accelerator(cpu=True)
    net, optimizer, data = engine.prepare(model, adam(model, 3e-3), loader(language.rows(160, 24)))
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
    doctor = run.watch(net, optimizer, scheduler=schedule)
    total = 0.0
    for _ in range(12):
        if not wrong:
            total = 0.0
        for (rows,) in data:
            optimizer.zero_grad()
            loss = next_loss(net, rows)
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)
            total += float(loss.detach())
        schedule.step(total)


@fault(
    "r7-ablation-left-in-place",
    EVALUATION,
    (
        r"block|hook|layer|gradient|branch|module",
        r"hook|no (longer|gradient)|not (used|reach|learn|updat|part)|zero|without (a )?gradient|skip|bypass|stop|unused|lost|cut|frozen|stand|still|dead|ablat",
    ),
)
def ablation_left_in_place(run: Run, wrong: bool) -> None:
    """Every thirty steps an evaluation asks what each block is good for, with hooks that return the block's input; they
    are never removed, and the blocks learn no more. Judged without hooks. The twin removes them."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    check = language.rows(96, 24, apart(901))

    def in_use() -> float:
        plain = Decoder(12, layers=2)
        plain.load_state_dict(model.state_dict())
        return judged(plain, lambda: next_loss(plain, check))

    outcome(run, in_use)
    optimizer = adam(model, 4e-3)
    doctor = run.watch(model, optimizer)
    small = language.rows(16, 24, apart(2))
    for step in range(110):
        rows = language.rows(12, 24)
        update(run, doctor, optimizer, next_loss(model, rows), rows)
        if step % 30 == 9:
            for block in model.blocks:
                hook = block.register_forward_hook(lambda module, inputs, output: inputs[0])
                judged(model, lambda: next_loss(model, small))
                if not wrong:
                    hook.remove()


@fault(
    "r7-adapter-left-merged",
    EVALUATION,
    (
        r"lora|adapter",
        r"merg|no (longer|gradient)|not (used|reach|learn|updat|part)|zero|without (a )?gradient|stop|unused|lost|frozen|stand|still|disabled|inactive|never",
    ),
)
def adapter_left_merged(run: Run, wrong: bool) -> None:
    """transformers' Trainer and peft. To write samples after ten steps the adapter is merged into the weights, and not
    taken out again: its matrices are no longer part of the forward pass. Biases are trained too, and go on alone."""
    from peft import LoraConfig, get_peft_model
    from transformers import TrainerCallback

    seed = run.draw.randrange(999)
    language = Language(seed, first=4)
    base = tiny_gpt2(n_layer=2)
    taught(base, lambda: language.rows(16, 20), lambda m, r: m(input_ids=r, labels=r).loss, 60)
    settings = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, bias="all")
    model = get_peft_model(base, settings)
    other = near(language, seed + 1, 0.9)
    other.first = 4
    check = other.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))

    class Sampling(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step == 10:
                model.merge_adapter()
                judged(model, lambda: model(input_ids=check[:4]).logits.sum())
                if not wrong:
                    model.unmerge_adapter()

    rows = other.rows(400, 20)
    data = examples(input_ids=rows, labels=rows)
    hf_trainer(run, model, data, 80, learning_rate=4e-3, more={"callbacks": [Sampling()]}).train()


@fault(
    "r7-annealed-at-every-pass",
    EVALUATION,
    (
        r"temperature|\btau\b|gumbel|anneal|softmax|codes|sampl",
        r"anneal|too (low|small|cold|early|fast|soon)|every (pass|step|batch|forward)|saturat|vanish|one.hot|noise|cold|counter|counts|sharp|hard",
    ),
)
def annealed_at_every_pass(run: Run, wrong: bool) -> None:
    """Rows of tokens through a few discrete codes. The temperature should fall by 0.7 each epoch, but its counter goes up
    with every forward pass: after thirteen batches it is at its floor, 0.01. The twin counts epochs."""
    own = apart(run.draw.randrange(999))
    kinds = torch.randint(0, 10, (24, 6), generator=own)
    model = Codes(10, wrong)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(m(rows).flatten(0, 1), rows.flatten())

    outcome(run, lambda: judged(model, lambda: loss(model, kinds)))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    for epoch in range(10):
        model.epoch = epoch
        for _ in range(25):
            rows = kinds[torch.randint(0, 24, (32,))]
            update(run, doctor, optimizer, loss(model, rows), rows)


@fault(
    "r7-augmentation-switched-off-for-both",
    EVALUATION,
    (
        r"augment|transform|input|batch|rows|data|train",
        r"augment|transform|same|no longer|spread|chang|repeat|identical|shared",
    ),
)
def augmentation_switched_off_for_both(run: Run, wrong: bool) -> None:
    """random_split gives two views of one data set. Before the first evaluation `valid.dataset.augment = False` is set,
    and the training's pictures are no longer moved either. Judged on moved pictures. The twin has a data set for each."""
    seed = run.draw.randrange(999)
    model = cnn(norm=False)
    own = apart(1)
    x, y = pictures(256, seed, own=own)
    check = torch.stack([moved(picture, own) for picture in x]), y
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    data = pictures(80, seed)
    learning, valid = torch.utils.data.random_split(Shifted(*data), [64, 16])
    if not wrong:
        valid.dataset = Shifted(*data)
    batches: Any = torch.utils.data.DataLoader(learning, 16, shuffle=True)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(40):
        for batch in batches:
            update(run, doctor, optimizer, classify(model, batch), batch)
        other: Any = valid.dataset
        other.augment = False
        vx, vy = zip(*valid, strict=True)
        judged(model, lambda: classify(model, (torch.stack(vx), torch.stack(vy))))


@fault(
    "r7-slow-weights-from-before-the-loading",
    EVALUATION,
    (
        r"weight|parameter|average|slow|lookahead|copy|loss|progress",
        r"slow|lookahead|average|jump|random|init|pulled|pull|stale|before .{0,20}load|overwrit|outside (of )?the (optimizer|step)|not by the optimizer|set back|revert|restor|undone|mixed|lost",
    ),
)
def slow_weights_from_before_the_loading(run: Run, wrong: bool) -> None:
    """Lookahead: every twenty steps the weights go half of the way back to slow ones. The slow copy was made before the
    published weights were loaded, and is random: the first meeting undoes half of them. Twin: copied after."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    published, model = Decoder(12), Decoder(12)
    taught(published, lambda: language.rows(16, 24), next_loss, 150)
    slow = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(published.state_dict())
    if not wrong:
        slow = [p.detach().clone() for p in model.parameters()]
    other = near(language, seed + 1, 0.3)
    text_outcome(run, model, other)
    optimizer = adam(model, 5e-4)
    doctor = run.watch(model, optimizer)
    for step in range(1, 81):
        rows = other.rows(12, 24)
        update(run, doctor, optimizer, next_loss(model, rows), rows)
        if step % 20 == 0:
            with torch.no_grad():
                for s, p in zip(slow, model.parameters(), strict=True):
                    s.lerp_(p, 0.5)
                    p.copy_(s)
