// The course of a loss, as small as a word.
import { numberOf } from "../format";
import type { RunRow } from "./documents";

const WIDTH = 96;
const HEIGHT = 22;

export function Spark({ curve }: { curve: RunRow["curve"] }) {
  const points = (curve?.x ?? []).map((x, at) => [x, numberOf(curve?.y[at])] as const).filter(([, y]) => Number.isFinite(y));
  if (points.length < 2) return null;
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  // the first steps fall by far the most, and would flatten the rest
  const [bottom, top] = [Math.min(...ys), Math.min(Math.max(...ys), 2 * median(ys))];
  const at = ([x, y]: readonly [number, number]) =>
    `${(((x - left) / (right - left || 1)) * WIDTH).toFixed(1)},${(2 + (1 - (Math.min(y, top) - bottom) / (top - bottom || 1)) * (HEIGHT - 4)).toFixed(1)}`;
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
      <polyline points={points.map(at).join(" ")} />
    </svg>
  );
}

function median(values: number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? 0;
}
