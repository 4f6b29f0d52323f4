"""Train a small model on Python's own library, then open its last step: every value twice, by engine and mathematics.

python examples/train_and_open_a_step.py
"""

import limpid

config = limpid.TrainConfig(
    model=limpid.ModelConfig(d_model=64, num_layers=2, num_heads=2, context_length=32),
    update=limpid.UpdateConfig(learning_rate=3e-3),
    run=limpid.RunConfig(max_steps=40, batch_size=8),
)
run = limpid.train(config)
steps, losses = run.read_metrics().column("loss")
print(f"loss {losses[0]:.3f} nats per token at step {steps[0]}, {losses[-1]:.3f} at step {steps[-1]}")

trace = limpid.trace(run)
verdict = trace.step.verdict
print(f"{verdict.verdict}: {verdict.within_bounds} of {verdict.checks} comparisons lie within computed rounding bounds")

# One number of block 0, head 1: how much the 6th token attends to the 4th, before the softmax.
score = trace.explain("blocks.0.attention.scores[0, 1, 5, 3]")
print(f"\n{score.address} = {score.value:.7g} in the engine; the mathematics:")
print(f"  {score.made.symbols}\n  {score.made.numbers}")
print(f"  the gradient of the loss with respect to it is {score.gradient:.3g}")

# The same numbers as arrays: what the model expects after the first row of the batch.
probabilities = limpid.maths.softmax(trace.array("logits")[0, -1])
_, tokenizer = limpid.load(run)
print("\nlikeliest next tokens")
for token in probabilities.argsort()[:-6:-1]:
    print(f"  {probabilities[token]:6.1%}  {tokenizer.decode([int(token)])!r}")
