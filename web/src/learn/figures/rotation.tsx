// A query and a key that are turned by their positions: the score follows the distance alone.
import { useSignal } from "@preact/signals";

import { dot, norm, turned, type Vector } from "./mathematics";
import { plain, Slider } from "./slider";

const LAST = 16;
const SIDE = 220;
const RADIUS = 78;
const WIDTH = 300;
const EDGE = 30;
/** How much further both stand where the score is looked at again. */
const ELSEWHERE = [2, 20, 200];

export function Rotation({ q, k, places }: { q: Vector; k: Vector; places: readonly (readonly [number, number])[] }) {
  const t = useSignal(places[0]?.[0] ?? 3);
  const s = useSignal(places[0]?.[1] ?? 1);
  const score = (at: number, from: number) => dot(turned(q, at), turned(k, from));
  const distance = t.value - s.value;
  const both = (by: number) => {
    t.value += by;
    s.value += by;
  };
  const least = Math.min(t.value, s.value);
  return (
    <div class="moving">
      <div class="pair">
        <Circle query={turned(q, t.value)} at={t.value} keyed={turned(k, s.value)} from={s.value} />
        <Curve score={(by) => score(by, 0)} distance={distance} most={norm(q) * norm(k)} />
      </div>
      <p class="reads" aria-live="polite">
        Query at {t.value}, key at {s.value}: distance <output data-is="distance">{plain(distance)}</output>, score{" "}
        <output data-is="score">{plain(score(t.value, s.value))}</output>
      </p>
      <p class="quiet">
        At the same distance:{" "}
        {ELSEWHERE.map((by) => `${t.value + by} and ${s.value + by} give ${plain(score(t.value + by, s.value + by))}`).join(", ")}.
      </p>
      <div class="by-slider">
        <Slider label="position of the query" value={t.value} shown={plain(t.value)} min={0} max={LAST} step={1} onValue={(value) => (t.value = value)} />
        <Slider label="position of the key" value={s.value} shown={plain(s.value)} min={0} max={LAST} step={1} onValue={(value) => (s.value = value)} />
      </div>
      <p class="by-button">
        <button type="button" disabled={least === 0} onClick={() => both(-1)}>
          both one back
        </button>
        <button type="button" disabled={Math.max(t.value, s.value) === LAST} onClick={() => both(1)}>
          both one on
        </button>
      </p>
    </div>
  );
}

/** Both arrows where they stand, and the angle between them. */
function Circle({ query, at, keyed, from }: { query: Vector; at: number; keyed: Vector; from: number }) {
  const unit = RADIUS / Math.max(norm(query), norm(keyed));
  const middle = SIDE / 2;
  const [start, stop] = [keyed, query].map(([right = 0, up = 0]) => Math.atan2(up, right)) as [number, number];
  const sweep = modulo(stop - start + Math.PI, 2 * Math.PI) - Math.PI;
  const arc = Array.from({ length: 25 }, (_, step) => start + (sweep * step) / 24).map((one) => `${middle + 26 * Math.cos(one)},${middle - 26 * Math.sin(one)}`);
  return (
    <svg viewBox={`0 0 ${SIDE} ${SIDE}`} width={SIDE} role="img" aria-label={`the query at ${at} and the key at ${from} as arrows from one point`}>
      <line class="axis" x1={0} x2={SIDE} y1={middle} y2={middle} />
      <line class="axis" x1={middle} x2={middle} y1={0} y2={SIDE} />
      <circle class="axis" cx={middle} cy={middle} r={norm(query) * unit} fill="none" />
      <polyline points={arc.join(" ")} fill="none" stroke="currentColor" stroke-width={1.5} />
      {(
        [
          ["q", query, "var(--first)"],
          ["k", keyed, "var(--second)"],
        ] as const
      ).map(([name, [right = 0, up = 0], colour]) => {
        const [x, y] = [right * unit, up * unit];
        const beyond = 1 + 15 / Math.hypot(x, y);
        return (
          <g key={name} fill={colour} stroke={colour} text-anchor="middle">
            <line x1={middle} y1={middle} x2={middle + x} y2={middle - y} stroke-width={2.5} />
            <circle cx={middle + x} cy={middle - y} r={5} />
            <text x={middle + x * beyond} y={middle - y * beyond + 4} stroke="none">
              {name}
            </text>
          </g>
        );
      })}
    </svg>
  );
}

/** The score of every distance, and where the two stand on it. */
function Curve({ score, distance, most }: { score: (distance: number) => number; distance: number; most: number }) {
  const x = (value: number) => EDGE + ((value + LAST) / (2 * LAST)) * (WIDTH - 2 * EDGE);
  const y = (value: number) => SIDE / 2 - (value / most) * (SIDE / 2 - EDGE);
  const line = Array.from({ length: 257 }, (_, at) => LAST * (at / 128 - 1)).map((one) => `${x(one).toFixed(1)},${y(score(one)).toFixed(1)}`);
  return (
    <svg viewBox={`0 0 ${WIDTH} ${SIDE}`} width={WIDTH} role="img" aria-label={`the score of each distance; at ${distance} it is ${plain(score(distance))}`}>
      <line class="axis" x1={EDGE} x2={WIDTH - EDGE} y1={y(0)} y2={y(0)} />
      <polyline points={line.join(" ")} fill="none" stroke="var(--quiet)" stroke-width={1.2} />
      <line class="fall" x1={x(distance)} x2={x(distance)} y1={y(0)} y2={y(score(distance))} />
      <circle cx={x(distance)} cy={y(score(distance))} r={5} fill="currentColor" />
      <g class="aside" text-anchor="middle">
        {[-LAST, -LAST / 2, 0, LAST / 2, LAST].map((one) => (
          <text key={one} class="aside" x={x(one)} y={SIDE - 14}>
            {plain(one)}
          </text>
        ))}
        <text class="aside" x={WIDTH / 2} y={SIDE}>
          distance
        </text>
        <text class="aside" x={WIDTH / 2} y={14}>
          score
        </text>
      </g>
    </svg>
  );
}

function modulo(value: number, by: number): number {
  return value - by * Math.floor(value / by);
}
