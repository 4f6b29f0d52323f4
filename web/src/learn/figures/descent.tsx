// Steps down a curve, while sliders move where they begin and how long they are.
import { useSignal } from "@preact/signals";

import { descent, loss } from "./mathematics";
import { plain, Slider } from "./slider";

const WIDTH = 376;
const HEIGHT = 240;
const EDGE = 24;
/** Of the smallest rate that diverges, how far the slider goes. */
const BEYOND = 1.1;

interface Settings {
  minimum: number;
  start: number;
  rate: number;
  steps: number;
}

export function Descent({ minimum, start: first, rate: firstRate, steps }: Settings) {
  const start = useSignal(first);
  const rate = useSignal(firstRate);
  const reach = 1.4 * Math.abs(first - minimum);
  const top = loss(minimum, minimum + reach);
  const x = (w: number) => EDGE + ((w - minimum + reach) / (2 * reach)) * (WIDTH - 2 * EDGE);
  const y = (l: number) => HEIGHT - EDGE - (l / top) * (HEIGHT - 2 * EDGE);
  const places = descent(minimum, start.value, rate.value, steps);
  const seen = places.filter((w) => Math.abs(w - minimum) <= reach * 1.02);
  const points = (all: number[]) => all.map((w) => `${x(w).toFixed(1)},${y(loss(minimum, w)).toFixed(1)}`).join(" ");
  const curve = Array.from({ length: 81 }, (_, at) => minimum + reach * (at / 40 - 1));
  const last = places[places.length - 1] ?? start.value;
  return (
    <div class="moving">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} role="img" aria-label="a curve of the loss, and steps down it">
        <line class="axis" x1={EDGE} x2={WIDTH - EDGE} y1={y(0)} y2={y(0)} />
        <polyline points={points(curve)} fill="none" stroke="var(--first)" stroke-width={2} />
        <polyline points={points(seen)} fill="none" stroke="var(--second)" stroke-width={1} />
        {seen.map((w, at) => (
          <circle key={at} cx={x(w)} cy={y(loss(minimum, w))} r={at ? 3.5 : 5.5} fill="var(--second)" />
        ))}
        <text class="aside" x={x(minimum)} y={HEIGHT - 6} text-anchor="middle">
          w = {plain(minimum, 3)}
        </text>
      </svg>
      <p class="reads" aria-live="polite">
        After {steps} steps w = <output data-is="weight">{plain(last)}</output>, loss{" "}
        <output data-is="loss">{plain(loss(minimum, last))}</output>: {outcome(rate.value)}
      </p>
      <div class="by-slider">
        <Slider label="step size" value={rate.value} shown={plain(rate.value, 2)} min={0} max={BEYOND} step={0.01} onValue={(value) => (rate.value = value)} />
        <Slider
          label="start"
          value={start.value}
          shown={plain(start.value, 3)}
          min={minimum - Math.abs(first - minimum)}
          max={minimum + Math.abs(first - minimum)}
          step={Math.abs(first - minimum) / 20}
          onValue={(value) => (start.value = value)}
        />
      </div>
    </div>
  );
}

/** What this step size does on a curve whose slope is twice the distance from its minimum. */
function outcome(rate: number): string {
  if (rate === 0) return "no step at all.";
  if (rate < 0.5) return "each step comes nearer.";
  if (rate === 0.5) return "one step leads to the minimum.";
  if (rate < 1) return "each step leaps over the minimum, and lands nearer.";
  return rate === 1 ? "each step leaps over to the same height." : "each step leaps over the minimum, and lands farther away.";
}
