"""LayerNorm or RMSNorm? Two models trained on the same batches, compared on text that neither saw, with an interval.

python examples/compare_two_models.py
"""

import limpid

runs = {}
for norm in ("layer", "rms"):
    config = limpid.TrainConfig(
        model=limpid.ModelConfig(d_model=64, num_layers=2, num_heads=2, context_length=32, norm=norm),
        update=limpid.UpdateConfig(learning_rate=3e-3),
        run=limpid.RunConfig(max_steps=60, batch_size=8),
    )
    runs[norm] = limpid.train(config)

found = limpid.evaluate(runs["layer"], against=runs["rms"], max_tokens=10_000)
for model, norm in enumerate(runs):
    loss = found.metric("loss", model).estimate
    print(f"{norm:>5}: {loss.value:.4f} nats per token, 95% interval {loss.low:.4f} to {loss.high:.4f}")
print(found.difference.sentence())
