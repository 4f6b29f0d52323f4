// What the model made of a prompt, step by step.
import { useSignal } from "@preact/signals";

import { whole } from "../format";
import { Slider } from "../parts/form";
import type { Sample } from "./documents";

export function Samples({ samples }: { samples: Sample[] }) {
  const place = useSignal<number | null>(null);
  const steps = [...new Set(samples.map((sample) => sample.step))].sort((a, b) => a - b);
  if (!steps.length) return null;
  const at = Math.min(place.value ?? steps.length - 1, steps.length - 1);
  const step = steps[at] ?? 0;
  return (
    <section aria-labelledby="samples">
      <h2 id="samples">Samples over time</h2>
      {steps.length > 1 && (
        <Slider label="after step" value={at} shown={whole(step)} min={0} max={steps.length - 1} step={1} onValue={(value) => (place.value = value)} />
      )}
      {samples
        .filter((sample) => sample.step === step)
        .map((sample, number) => (
          <blockquote key={number} class="sample">
            <span class="prompt">{sample.prompt}</span>
            {sample.text}
          </blockquote>
        ))}
    </section>
  );
}
