// How uPlot is asked to draw curves: one column of x for all of them, colours from the page's style.
import uPlot from "uplot";

import { digits } from "../format";
import type { CurveProps } from "./curve";

export interface Line {
  label: string;
  /** The name of a colour of the page's style, as in var(--run-1). */
  colour: string;
  x: number[];
  /** null where a value is not finite: the curve has a gap there. */
  y: (number | null)[];
  low?: (number | null)[] | undefined;
  high?: (number | null)[] | undefined;
  /** Drawn thin, behind the others, and not named. */
  faint?: boolean;
  /** Single points with nothing between them. */
  dots?: boolean;
}

/** All lines over one column of x. What is undefined there was measured elsewhere only. */
export function aligned(lines: Line[]): uPlot.AlignedData {
  const tables = lines.map(({ x, y, low, high }) => [x, y, ...(low && high ? [low, high] : [])] as uPlot.AlignedData);
  return tables.length ? uPlot.join(tables) : [[]];
}

export interface Heard {
  cursor: (index: number | null) => void;
  drawn: () => void;
}

export function options(props: CurveProps, width: number, height: number, heard: Heard): uPlot.Options {
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  for (const line of props.lines) {
    const stroke = (): string => colour(line.colour);
    const alpha = line.faint ? 0.3 : 1;
    series.push({
      label: line.label,
      stroke,
      alpha,
      width: line.dots ? 0 : line.faint ? 0.75 : 1.75,
      points: { show: (plot) => !!line.dots || plot.data[0].length < 2, size: 7, stroke, fill: () => colour("var(--paper)"), width: 1.75 },
    });
    if (line.low && line.high) {
      const edge: uPlot.Series = { width: 0, points: { show: false } };
      series.push({ ...edge, label: `${line.label} low` }, { ...edge, label: `${line.label} high` });
      bands.push({ series: [series.length - 1, series.length - 2], fill: () => faded(colour(line.colour), 0.2) });
    }
  }
  const axis: uPlot.Axis = {
    stroke: () => colour("var(--quiet)"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: () => colour("var(--line)"), width: 1 },
    ticks: { show: false },
    gap: 6,
  };
  const y: uPlot.Scale = { distr: props.log ? 3 : 1 };
  if (!props.log) y.range = (_, low, high) => limits(low, high, !!props.fromZero);
  return {
    width,
    height,
    series,
    bands,
    padding: [8, 12, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 7 }, ...(props.together ? { sync: { key: props.together, scales: ["x", null] } } : {}) },
    scales: { x: { time: false }, y },
    axes: [
      { ...axis, size: 26, values: (_, splits) => splits.map(tick), space: 70, ...(props.whole ? { incrs: WHOLE } : {}), label: props.along, labelSize: 18, labelGap: 0, labelFont: "12px system-ui, sans-serif" },
      { ...axis, size: 58, values: (_, splits) => splits.map(tick), space: 34 },
    ],
    hooks: { setCursor: [(plot) => heard.cursor(plot.cursor.idx ?? null)], draw: [heard.drawn] },
  };
}

/** Distances between the marks of an axis of whole numbers. */
const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

/** Room above and below; one value alone stands in the middle. */
function limits(low: number | null, high: number | null, fromZero: boolean): uPlot.Range.MinMax {
  if (low === null || high === null) return [0, 1];
  const bottom = fromZero ? Math.min(0, low) : low;
  const room = (high - bottom) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [fromZero && bottom === 0 ? 0 : bottom - room, high + room];
}

function tick(value: number | null): string {
  if (value === null) return "";
  if (value !== 0 && (Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3)) {
    if (Math.abs(value) >= 1e3 && Math.abs(value) < 1e13) return short(value);
    return String(Number(value.toPrecision(3)).toExponential()).replace("e+", "e").replace("-", "−");
  }
  return digits(Number(value.toPrecision(6)), 6).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

function short(value: number): string {
  const power = Math.min(4, Math.floor(Math.log10(Math.abs(value)) / 3 + 1e-9));
  return `${Number((value / 1000 ** power).toPrecision(4))}${["", "k", "M", "B", "T"][power]}`;
}

/** The colour that a name stands for in the style that holds now. */
export function colour(name: string): string {
  const variable = /^var\((--[\w-]+)\)$/.exec(name)?.[1];
  return variable ? getComputedStyle(document.documentElement).getPropertyValue(variable).trim() || "#888" : name;
}

function faded(hex: string, alpha: number): string {
  const part = (at: number): number => Number.parseInt(hex.slice(at, at + 2), 16);
  return /^#[\da-f]{6}$/i.test(hex) ? `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})` : "rgba(128, 128, 128, 0.2)";
}

/** Draw again when the page turns dark, light, or is printed. */
export function redrawnWithTheme(plot: uPlot): () => void {
  const again = (): void => plot.redraw(false, false);
  const queries = ["(prefers-color-scheme: dark)", "print"].map((query) => matchMedia(query));
  for (const query of queries) query.addEventListener("change", again);
  const chosen = new MutationObserver(again);
  chosen.observe(document.documentElement, { attributes: true });
  return () => {
    for (const query of queries) query.removeEventListener("change", again);
    chosen.disconnect();
  };
}
