"""Bugs of what a step is given: batches, checkpoints and replay, preference pairs."""

from __future__ import annotations

from benchmarks.robustness.bugs_answers import BATCH, MOVED, RATE, REMEMBERED, REPLAY
from benchmarks.robustness.bugs_patch import Bug, Edit

UPDATE, CHECKPOINT = "training/update.py", "training/checkpoint.py"
BATCHES, PAIRS = "data/batches.py", "objectives/preference.py"

DATA = (
    Bug(
        "targets-unshifted",
        "batch",
        "Every position is taught its own token.",
        (Edit(BATCHES, '"targets": windows[:, 1:]', '"targets": windows[:, :-1]'),),
        BATCH,
        subtle=False,
    ),
    Bug(
        "targets-shifted-by-two",
        "batch",
        "Every position is taught the token after the next.",
        (
            Edit(
                BATCHES, "np.arange(context_length + 1)].astype", "np.arange(context_length + 2) % len(tokens)].astype"
            ),
            Edit(
                BATCHES,
                '{"tokens": windows[:, :-1], "targets": windows[:, 1:]}',
                '{"tokens": windows[:, :-2], "targets": windows[:, 2:]}',
            ),
        ),
        BATCH,
        subtle=False,
    ),
    Bug(
        "windows-overlap",
        "batch",
        "Windows begin one token early each: neighbours share two tokens.",
        (
            Edit(
                BATCHES,
                "int(offset) % self.offsets + windows * self.context_length",
                "int(offset) % self.offsets + windows * (self.context_length - 1)",
            ),
        ),
        BATCH,
    ),
    Bug(
        "same-order-every-epoch",
        "batch",
        "The second epoch visits the windows in the order of the first.",
        (Edit(BATCHES, "SeedSequence((*seed, int(epoch), *number))", "SeedSequence((*seed, 0, *number))"),),
        BATCH,
        "second epoch",
    ),
    Bug(
        "steps-share-rows",
        "batch",
        "Steps count their rows without the micro-batches: each repeats most of the one before.",
        (
            Edit(
                BATCHES,
                "np.arange((step - 1) * rows, step * rows)",
                "np.arange(rows) + (step - 1) * self.batch_size",
            ),
        ),
        BATCH,
        "micro-batches",
        subtle=False,
    ),
    Bug(
        "no-label-after-a-document",
        "batch",
        "The first token of a document is not a label.",
        (
            Edit(
                BATCHES,
                '    arrays = {"tokens": windows[:, :-1], "targets": windows[:, 1:]}\n',
                '    arrays = {"tokens": windows[:, :-1], "targets": windows[:, 1:].copy()}\n'
                '    arrays["targets"][arrays["tokens"] == 256] = -100\n',
            ),
        ),
        (*BATCH, "labels"),
        "many rows",
    ),
    Bug(
        "tokens-in-one-byte",
        "batch",
        "Tokens pass through uint8: the end of text, 256, becomes 0.",
        (
            Edit(
                BATCHES,
                "np.arange(context_length + 1)].astype",
                "np.arange(context_length + 1)].astype(np.uint8).astype",
            ),
        ),
        BATCH,
        "many rows",
    ),
)

CHECKPOINTS = (
    Bug(
        "moments-forgotten",
        "replay",
        "Loading a checkpoint leaves the moments at zero.",
        (
            Edit(
                UPDATE,
                'spread_like(moments[f"{ours}/{name}"].to(parameter.device, copy=True), parameter)',
                "torch.zeros_like(parameter)",
            ),
        ),
        (*REMEMBERED, *REPLAY),
        "resumed",
        subtle=False,
    ),
    Bug(
        "one-second-moment-forgotten",
        "replay",
        "Loading a checkpoint forgets the second moment of one matrix.",
        (
            Edit(
                UPDATE,
                'moments[f"{ours}/{name}"].to(parameter.device, copy=True)',
                'moments[f"{ours}/{name}"].to(parameter.device, copy=True) * '
                'float(f"{ours}/{name}" != "v/blocks.1.mlp.up.weight")',
            ),
        ),
        ("v(blocks.1.mlp.up.weight) (update)", *REPLAY),
    ),
    Bug(
        "update-number-one-behind",
        "replay",
        "After loading, Adam corrects its biases for one update fewer.",
        (Edit(UPDATE, "torch.tensor(float(updates)", "torch.tensor(float(max(updates - 1, 0))"),),
        (*MOVED, *REPLAY),
    ),
    Bug(
        "step-number-one-ahead",
        "replay",
        "A loaded run goes on one step too far: one batch is passed over.",
        (
            Edit(
                CHECKPOINT,
                'state.step, state.updates = record["step"], record["updates"]',
                'state.step, state.updates = record["step"] + bool(record["step"]), record["updates"]',
            ),
        ),
        (*BATCH, *RATE, *REPLAY),
        "resumed",
    ),
    Bug(
        "stale-weights-saved",
        "replay",
        "A checkpoint holds the weights of the one before it, beside today's moments.",
        (
            Edit(
                CHECKPOINT,
                "            weights = {name: tensor.detach() for name, tensor in model.named_parameters()}\n",
                "            weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}\n"
                "            weights, run.__dict__['last'] = run.__dict__.get('last', weights), weights\n",
            ),
        ),
        REPLAY,
        subtle=False,
    ),
    Bug(
        "weights-saved-in-bf16",
        "replay",
        "Checkpoints hold the weights rounded to bf16.",
        (
            Edit(
                CHECKPOINT,
                "weights = {name: tensor.detach() for name, tensor in model.named_parameters()}",
                "weights = {name: tensor.detach().bfloat16().float() for name, tensor in model.named_parameters()}",
            ),
        ),
        REPLAY,
    ),
)

PREFERENCES = (
    Bug(
        "references-swapped",
        "preference pairs",
        "The chosen answer is held against the reference's rejected one, and the other way round.",
        (
            Edit(PAIRS, "self.beta * (chosen - reference[0])", "self.beta * (chosen - reference[1])"),
            Edit(PAIRS, "self.beta * (rejected - reference[1])", "self.beta * (rejected - reference[0])"),
        ),
        ("pair_losses (forward)",),
        "own batches, pairs",
        subtle=False,
    ),
    Bug(
        "prompt-not-masked",
        "preference pairs",
        "The prompt's tokens count towards the answers.",
        (Edit(PAIRS, "(answered * mask).sum(-1)", "answered.sum(-1)"),),
        ("answer_log_probabilities (forward)",),
        "own batches, pairs",
        subtle=False,
    ),
    Bug(
        "halves-instead-of-pairs",
        "preference pairs",
        "Chosen answers are looked for in the first half of the batch, rejected ones in the second.",
        (
            Edit(PAIRS, "answers[0::2])", "answers[: len(answers) // 2])"),
            Edit(PAIRS, "answers[1::2])", "answers[len(answers) // 2 :])"),
        ),
        ("chosen_log_probabilities (forward)",),
        "own batches, pairs",
        subtle=False,
    ),
    Bug(
        "beta-on-the-policy-only",
        "preference pairs",
        "β multiplies the policy's log-probability, not the reference's.",
        (Edit(PAIRS, "self.beta * (rejected - reference[1])", "self.beta * rejected - reference[1]"),),
        ("pair_losses (forward)",),
        "own batches, pairs",
        subtle=False,
    ),
    Bug(
        "labels-smoothed",
        "preference pairs",
        "One percent of each pair's loss is that of the opposite preference.",
        (
            Edit(
                PAIRS,
                "-F.logsigmoid(margins)",
                "-0.99 * F.logsigmoid(margins) - 0.01 * F.logsigmoid(-margins)",
            ),
        ),
        ("pair_losses (forward)",),
        "own batches, pairs",
    ),
    Bug(
        "mean-of-pair-means",
        "preference pairs",
        "Each micro-batch takes the mean over its own pairs.",
        (Edit(PAIRS, "losses.sum() / labels", "losses.mean() / 2"),),
        ("loss (forward)", "pair_losses (backward)"),
        "own batches, pairs",
    ),
)

DATA_BUGS = (*DATA, *CHECKPOINTS, *PREFERENCES)
