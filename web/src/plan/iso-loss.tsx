// Sizes and numbers of tokens that reach the same loss, under a published law; the best ones, and where this plan stands.
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";

import { count, digits } from "../format";
import { Choice } from "../parts/form";
import { standalone } from "../parts/picture";
import { Save } from "../parts/save";
import { useWidth } from "../parts/width";
import type { Law, PlanDocument } from "./documents";
import { bestFor, lossOf, tokensFor } from "./law";

const [LEFT, BOTTOM, TOP, RIGHT] = [56, 44, 14, 40];
/** Pixels of the name of a curve. */
const NAME = [32, 12] as const;

export function IsoLoss({ laws, plan }: { laws: Law[]; plan: PlanDocument }) {
  const name = useSignal(laws[0]?.name ?? "");
  const picture = useRef<SVGSVGElement>(null);
  const [width, box] = useWidth<HTMLElement>(300, 860);
  const height = Math.max(280, Math.round(width / 2));
  const law = laws.find((one) => one.name === name.value);
  if (!law) return null;
  const [size, tokens] = subject(plan);
  const [left, right] = span(size, 1e8, 1e11);
  const [low, high] = span(tokens, 1e9, 1e13);
  const x = (value: number) => LEFT + (Math.log10(value / left) / Math.log10(right / left)) * (width - LEFT - RIGHT);
  const y = (value: number) => height - BOTTOM - (Math.log10(value / low) / Math.log10(high / low)) * (height - BOTTOM - TOP);
  const sizes = Array.from({ length: 121 }, (_, at) => left * (right / left) ** (at / 120));
  const inside = (value: number) => value >= low && value <= high;
  const levels = losses(lossOf(law, right, high), lossOf(law, left, low));
  const curves = levels.flatMap((loss) => {
    const points = sizes.map((n): [number, number] => [n, tokensFor(law, loss, n)]).filter(([, d]) => inside(d));
    const end = points[points.length - 1];
    return end ? [{ loss, points, end: [x(end[0]) + 5, y(end[1]) + 4] as [number, number] }] : [];
  });
  const areNamed = named(curves.map(({ end }) => end));
  const drawn = (points: [number, number][]) => points.filter(([, d]) => inside(d)).map(([n, d]) => `${x(n).toFixed(1)},${y(d).toFixed(1)}`).join(" ");
  const budget = size && tokens ? 6 * size * tokens : null;
  const best = budget && bestFor(law, budget);
  return (
    <section aria-labelledby="iso-loss">
      <h2 id="iso-loss">Sizes and tokens that reach the same loss</h2>
      <div class="line-up">
        <Choice label="law" value={name.value} choices={laws.map((one) => one.name)} onValue={(value) => (name.value = value)} />
        <p class="quiet">{law.source}</p>
      </div>
      <figure class="iso picture" ref={box}>
        <Save name={`iso-loss, ${law.name}`} svg={() => standalone(picture.current, `Curves of equal loss, ${law.name}`, ".keys span")} />
        <svg ref={picture} width={width} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={said(law, size, tokens)}>
          {decades(left, right).map((value) => (
            <g key={value}>
              <line class="grid" x1={x(value)} x2={x(value)} y1={TOP} y2={height - BOTTOM} />
              <text x={x(value)} y={height - BOTTOM + 16} text-anchor="middle">{count(value)}</text>
            </g>
          ))}
          {decades(low, high).map((value) => (
            <g key={value}>
              <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(value)} y2={y(value)} />
              <text x={LEFT - 8} y={y(value) + 4} text-anchor="end">{count(value)}</text>
            </g>
          ))}
          {curves.map(({ loss, points, end }, place) => (
            <g key={loss}>
              <polyline class="level" points={drawn(points)} />
              {areNamed[place] && <text class="level-name" x={end[0]} y={end[1]}>{digits(loss, 3)}</text>}
            </g>
          ))}
          <polyline class="best" points={drawn(sizes.map((n) => [n, bestTokens(law, n)]))} />
          {budget && <polyline class="budget" points={drawn(sizes.map((n) => [n, budget / 6 / n]))} />}
          {best && inside(best[1]) && <circle class="optimum" cx={x(best[0])} cy={y(best[1])} r={5} />}
          {size && tokens && <circle class="here" cx={x(size)} cy={y(tokens)} r={6} />}
          <text x={(LEFT + width - RIGHT) / 2} y={height - 6} text-anchor="middle">parameters</text>
          <text x={14} y={(TOP + height - BOTTOM) / 2} text-anchor="middle" transform={`rotate(-90 14 ${(TOP + height - BOTTOM) / 2})`}>tokens</text>
        </svg>
        <figcaption class="keys">
          <span><i class="swatch level" /> same loss, nats per token</span>
          <span><i class="swatch best" /> best for its compute</span>
          {budget && <span><i class="swatch budget" /> same compute, {digits(budget, 3)} FLOPs</span>}
          {size && tokens && <span><i class="dot here" /> this plan, loss {digits(lossOf(law, size, tokens), 4)}</span>}
          {best && <span><i class="dot optimum" /> best: {count(best[0])} parameters, {count(best[1])} tokens, loss {digits(lossOf(law, ...best), 4)}</span>}
        </figcaption>
      </figure>
    </section>
  );
}

/** Parameters and tokens of a plan, where it has them. */
function subject(plan: PlanDocument): [number | null, number | null] {
  const figures = plan.sections.flatMap((section) => section.figures);
  const compute = figures.find((figure) => figure.name === "scaling.compute");
  const size = compute?.numbers.N ?? figures.find((figure) => figure.name === "parameters.total")?.value ?? null;
  return [size, compute?.numbers.D ?? null];
}

/** Decades around a value, or those that are given. */
function span(value: number | null, low: number, high: number): [number, number] {
  if (!value) return [low, high];
  const middle = Math.floor(Math.log10(value));
  return [10 ** (middle - 1), 10 ** (middle + 2)];
}

function decades(low: number, high: number): number[] {
  const found: number[] = [];
  for (let value = low; value <= high * 1.001; value *= 10) found.push(value);
  return found;
}

/** Some nine losses between two, at round numbers. */
function losses(low: number, high: number): number[] {
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((one) => (high - low) / one <= 14) ?? 1;
  const found: number[] = [];
  for (let at = Math.ceil(low / step); at * step < high; at++) found.push(Number((at * step).toFixed(4)));
  return found;
}

/** Which curves have room for their name: none that would be written over the one before. */
function named(ends: [number, number][]): boolean[] {
  const taken: [number, number][] = [];
  return ends.map(([left, top]) => {
    const isFree = taken.every(([x, y]) => Math.abs(x - left) > NAME[0] || Math.abs(y - top) > NAME[1]);
    if (isFree) taken.push([left, top]);
    return isFree;
  });
}

/** Tokens for which a size is the best one: where both derivatives along equal compute balance. */
function bestTokens({ A, B, alpha, beta }: Law, size: number): number {
  return ((beta * B) / (alpha * A)) ** (1 / beta) * size ** (alpha / beta);
}

function said(law: Law, size: number | null, tokens: number | null): string {
  const here = size && tokens ? `; this plan, ${count(size)} parameters and ${count(tokens)} tokens, has ${digits(lossOf(law, size, tokens), 4)}` : "";
  return `iso-loss curves of ${law.name} over parameters and tokens${here}`;
}
