// A gradient that goes back through layers, and lasts, dies or explodes: depth, weights, what bends, and the stream.
import { useSignal } from "@preact/signals";

import { type Bend, BENDS, gradientNorms } from "./layers";
import { plain, scientific, Slider } from "./slider";

const WIDTH = 376;
const HEIGHT = 240;
const LEFT = 52;
const EDGE = 24;
/** Powers of ten at the top and, negative, at the bottom. */
const REACH = 12;
const DEEPEST = 48;

export function Flow({ bend: firstBend, scale: firstScale, depth: firstDepth }: { bend: Bend; scale: number; depth: number }) {
  const bend = useSignal(firstBend);
  const power = useSignal(Math.log2(firstScale));
  const depth = useSignal(firstDepth);
  const added = useSignal(true);
  const scale = 2 ** power.value;
  const lengths = gradientNorms(bend.value, scale, depth.value, added.value);
  const other = gradientNorms(bend.value, scale, depth.value, !added.value);
  const left = lengths[lengths.length - 1] ?? 1;
  const x = (layer: number) => LEFT + (layer / depth.value) * (WIDTH - LEFT - EDGE);
  const y = (length: number) => HEIGHT / 2 - (Math.log10(length) / REACH) * (HEIGHT / 2 - EDGE);
  const places = (all: number[]) => all.map((length, at) => [x(at), y(length)] as const).filter(([, high]) => high >= 0 && high <= HEIGHT);
  const line = (all: number[]) =>
    places(all)
      .map(([across, high]) => `${across.toFixed(1)},${high.toFixed(1)}`)
      .join(" ");
  return (
    <div class="moving">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT + 8}`} width={WIDTH} role="img" aria-label="the length of a gradient after each layer, on a logarithmic scale">
        {[REACH, REACH / 2, 0, -REACH / 2, -REACH].map((one) => (
          <g key={one}>
            <line class="axis" x1={LEFT} x2={WIDTH - EDGE} y1={y(10 ** one)} y2={y(10 ** one)} />
            <text class="aside" x={LEFT - 6} y={y(10 ** one) + 4} text-anchor="end">
              {scientific(10 ** one, 1)}
            </text>
          </g>
        ))}
        <polyline points={line(other)} fill="none" stroke="var(--quiet)" stroke-dasharray="4 3" />
        <polyline points={line(lengths)} fill="none" stroke={added.value ? "var(--first)" : "var(--second)"} stroke-width={1.5} />
        {places(lengths).map(([across, high], at) => (
          <circle key={at} cx={across} cy={high} r={3} fill={added.value ? "var(--first)" : "var(--second)"} />
        ))}
        <text class="aside" x={(LEFT + WIDTH - EDGE) / 2} y={HEIGHT + 4} text-anchor="middle">
          layers that the gradient has passed
        </text>
      </svg>
      <p class="reads" aria-live="polite">
        Of a gradient of length 1, after {depth.value} {depth.value === 1 ? "layer" : "layers"}{" "}
        <output data-is="length">{scientific(left)}</output> is left: {outcome(left)} <span class="quiet">(Dashed: {added.value ? "replaced" : "added"}.)</span>
      </p>
      <div class="by-slider">
        <Slider label="layers" value={depth.value} shown={plain(depth.value)} min={1} max={DEEPEST} step={1} onValue={(value) => (depth.value = value)} />
        <Slider label="scale of the weights" value={power.value} shown={plain(scale, 3)} min={-2} max={2} step={0.05} onValue={(value) => (power.value = value)} />
        <label class="field">
          <span>behind each matrix</span>
          <select value={bend.value} onChange={(event) => (bend.value = event.currentTarget.value as Bend)}>
            {Object.keys(BENDS).map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <label class="check">
          <input type="checkbox" checked={added.value} onChange={(event) => (added.value = event.currentTarget.checked)} /> each layer is added to the stream
        </label>
      </div>
    </div>
  );
}

function outcome(left: number): string {
  if (left < 1e-3) return "it vanishes.";
  return left > 1e3 ? "it explodes." : "it lasts.";
}
