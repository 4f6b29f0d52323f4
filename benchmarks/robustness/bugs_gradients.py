"""Bugs between the gradients and the update: precision, accumulation, clipping, schedule."""

from __future__ import annotations

from benchmarks.robustness.bugs_answers import FROM_THE_LOSS, MOVED, RATE, REMEMBERED, REPLAY
from benchmarks.robustness.bugs_patch import Bug, Edit

STEP, UPDATE, SCHEDULE = "training/step.py", "training/update.py", "schedule.py"
CHECKPOINT = "training/checkpoint.py"

PRECISION = (
    Bug(
        "clipped-before-unscaling",
        "mixed precision",
        "Gradients are clipped while they still hold the loss scale, then unscaled.",
        (
            Edit(
                UPDATE,
                """    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf if max_grad_norm is None else max_grad_norm)
""",
                """    limit = math.inf if max_grad_norm is None else max_grad_norm
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    scaler.unscale_(optimizer)
""",
            ),
        ),
        ("grad_norm (update)",),
        "fp16",
        subtle=False,
    ),
    Bug(
        "skipped-steps-count-as-updates",
        "replay",
        "The number of updates counts the steps that float16 skipped, and reaches Adam with the checkpoint.",
        (Edit(STEP, "state.updates + updated", "state.updates + 1"),),
        (*MOVED, *REPLAY),
        "fp16, overflow",
    ),
    Bug(
        "loss-scale-not-restored",
        "replay",
        "A checkpoint's loss scale is not loaded: the step starts again from the first one.",
        (Edit(CHECKPOINT, 'state.scaler.load_state_dict(record["scaler"])', "pass"),),
        ("updated (update)", "scale", "scaler", *REPLAY),
        "fp16, overflow",
    ),
    Bug(
        "masters-rounded-to-bf16",
        "mixed precision",
        "Parameters pass through bf16 after every update: small steps are lost.",
        (
            Edit(
                UPDATE,
                "        scaler.step(optimizer)\n",
                """        scaler.step(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data.copy_(parameter.data.bfloat16())
""",
            ),
        ),
        MOVED,
        "bf16",
    ),
    Bug(
        "gradients-through-bf16",
        "mixed precision",
        "Gradients are rounded to bf16 on their way to the update.",
        (
            Edit(
                UPDATE,
                "    scaler.unscale_(optimizer)\n",
                """    scaler.unscale_(optimizer)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.bfloat16())
""",
            ),
        ),
        ("grad_norm (update)", *REMEMBERED),
        "bf16",
    ),
)

GRADIENTS = (
    Bug(
        "mean-of-means",
        "gradient accumulation",
        "Each micro-batch's loss is the mean over its own labels, divided by the number of micro-batches.",
        (
            Edit(
                STEP,
                "objective.loss(state.models, micro, labels, mode)",
                "objective.loss(state.models, micro, objective.labels(micro) * len(batch), mode)",
            ),
        ),
        ("loss (forward)", *FROM_THE_LOSS),
        "own batches, padded",
    ),
    Bug(
        "padding-counted",
        "gradient accumulation",
        "The labels that the loss is divided by include the padding.",
        (
            Edit(
                "objectives/next_token.py",
                'int((micro["targets"] != NO_LABEL).sum())',
                'int(micro["targets"].size)',
            ),
        ),
        ("loss (forward)", "labels", *FROM_THE_LOSS),
        "own batches, padded",
        subtle=False,
    ),
    Bug(
        "gradients-not-zeroed",
        "gradient accumulation",
        "The gradients of the step before are still there, and are added to.",
        (Edit(STEP, "state.optimizer.zero_grad(set_to_none=True)", "pass"),),
        ("*.weight (backward)",),
        subtle=False,
    ),
    Bug(
        "only-the-last-micro-batch",
        "gradient accumulation",
        "Gradients are zeroed before every micro-batch instead of before every step.",
        (
            Edit(
                STEP,
                "        loss = objective.loss(state.models, micro, labels, mode)",
                "        state.optimizer.zero_grad(set_to_none=True)\n"
                "        loss = objective.loss(state.models, micro, labels, mode)",
            ),
        ),
        ("*.weight (backward)",),
        "micro-batches",
        subtle=False,
    ),
    Bug(
        "clipped-without-the-embedding",
        "clipping",
        "The global norm and the clipping leave the embedding out.",
        (
            Edit(
                UPDATE,
                "clip_grad_norm_(model.parameters(),",
                'clip_grad_norm_([p for name, p in model.named_parameters() if not name.startswith("embed")],',
            ),
        ),
        ("grad_norm (update)",),
    ),
    Bug(
        "clipped-one-by-one",
        "clipping",
        "Every parameter is clipped to the norm by itself instead of all of them together; the norm logged is right.",
        (
            Edit(
                UPDATE,
                "    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), ",
                "    norm = torch.stack([torch.nn.utils.clip_grad_norm_([p], math.inf if max_grad_norm is None else "
                "max_grad_norm) for p in model.parameters() if p.grad is not None]).norm()\n"
                "    torch.nn.utils.clip_grad_norm_([], ",
            ),
        ),
        (*REMEMBERED, *MOVED),
        subtle=False,
    ),
)

SCHEDULES = (
    Bug(
        "rate-of-the-step-before",
        "schedule",
        "The loop asks for the rate with steps counted from 0.",
        (Edit(STEP, "learning_rate(number, ", "learning_rate(number - 1, "),),
        RATE,
        "warm-up",
    ),
    Bug(
        "warm-up-ends-early",
        "schedule",
        "Warm-up divides by one step fewer.",
        (
            Edit(
                SCHEDULE,
                "return peak * warmup(step, climb)",
                "return peak * warmup(step, max(1, climb - 1))",
            ),
        ),
        RATE,
        "warm-up",
    ),
    Bug(
        "cosine-counts-the-warm-up",
        "schedule",
        "The cosine starts at step 0 instead of at the end of warm-up.",
        (
            Edit(
                SCHEDULE,
                "_shape(step - climb, max(1, max_steps - climb), update)",
                "_shape(step, max_steps, update)",
            ),
        ),
        RATE,
        "cosine",
        subtle=False,
    ),
    Bug(
        "floor-cut-off",
        "schedule",
        "The rate decays to 0 and is cut off at the floor, instead of decaying to the floor.",
        (
            Edit(
                SCHEDULE,
                "return floor + (peak - floor) * _shape(step - climb, max(1, max_steps - climb), update)",
                "return max(floor, peak * _shape(step - climb, max(1, max_steps - climb), update))",
            ),
        ),
        RATE,
        "cosine",
    ),
    Bug(
        "no-restart",
        "schedule",
        "The second cosine does not start again: the rate climbs back the way it came.",
        (Edit(SCHEDULE, "progress * cycles % 1", "progress * cycles"),),
        RATE,
        "restarts",
        subtle=False,
    ),
    Bug(
        "rate-of-the-first-group-only",
        "schedule",
        "The schedule reaches the first group of parameters; the gains keep their first rate.",
        (Edit(UPDATE, "for group in optimizer.param_groups:", "for group in optimizer.param_groups[:1]:"),),
        ("*norm*.weight (update)", *RATE),
    ),
)

GRADIENT_BUGS = (*PRECISION, *GRADIENTS, *SCHEDULES)
