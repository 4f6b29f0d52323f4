// Probabilities of scores as bars, while a slider moves the temperature.
import { useSignal } from "@preact/signals";

import { softmax } from "./mathematics";
import { plain, Slider } from "./slider";

const BAR = 64;
const HEIGHT = 160;
const TOP = 24;

export function Temperature({ z }: { z: readonly number[] }) {
  const power = useSignal(0);
  const temperature = 10 ** power.value;
  const shares = softmax(z, temperature);
  const width = z.length * BAR + 20;
  const bottom = TOP + HEIGHT;
  return (
    <div class="moving">
      <svg viewBox={`0 0 ${width} ${bottom + 24}`} width={width} role="img" aria-label={`probabilities of the scores ${z.join(", ")}`}>
        {shares.map((share, at) => (
          <g key={at} text-anchor="middle">
            <rect x={10 + at * BAR + 6} y={bottom - share * HEIGHT} width={BAR - 12} height={share * HEIGHT} fill="var(--first)" />
            <text x={10 + at * BAR + BAR / 2} y={bottom - share * HEIGHT - 6}>
              {share.toFixed(3)}
            </text>
            <text class="aside" x={10 + at * BAR + BAR / 2} y={bottom + 17}>
              {plain(z[at] ?? 0)}
            </text>
          </g>
        ))}
        <line x1={6} x2={width - 6} y1={bottom} y2={bottom} stroke="currentColor" />
      </svg>
      <p class="reads" aria-live="polite">
        Probabilities of the scores {z.map((score) => plain(score, 3)).join(", ")}:{" "}
        <output data-is="shares">{shares.map((share) => share.toFixed(3)).join(", ")}</output>
      </p>
      <div class="by-slider">
        <Slider label="temperature" value={power.value} shown={plain(temperature, 3)} min={-1} max={1} step={0.05} onValue={(value) => (power.value = value)} />
      </div>
    </div>
  );
}
