// Numbers as people read them. Values that are not finite come as the words nan, inf and -inf.
export type Figure = number | string | null | undefined;

/** The number that a figure is; NaN where there is none. */
export function numberOf(figure: Figure): number {
  if (typeof figure === "number") return figure;
  if (figure === "inf") return Infinity;
  if (figure === "-inf") return -Infinity;
  return Number.NaN;
}

/** So many significant digits, without an exponent where none is needed. */
export function digits(figure: Figure, count = 4): string {
  if (figure === null || figure === undefined) return "–";
  const number = numberOf(figure);
  if (!Number.isFinite(number)) return String(figure);
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e-3 && size < 10 ** Math.max(5, count)) {
    const after = Math.max(0, count - 1 - Math.floor(Math.log10(size)));
    return trimmed(number.toFixed(Math.min(after, 12)));
  }
  const [head = "", power = ""] = number.toExponential(count - 1).split("e");
  return `${trimmed(head)}e${power.replace("+", "")}`;
}

function trimmed(text: string): string {
  return text.replace("-", "−");
}

/** Whole numbers with thousands apart. */
export function whole(figure: Figure): string {
  const number = numberOf(figure);
  return Number.isFinite(number) ? Math.round(number).toLocaleString("en-GB") : "–";
}

const COUNTS: [number, string][] = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
const SIZES: [number, string][] = [[1e18, "EB"], [1e15, "PB"], [1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];

/** Parameters and tokens: 3.21M. */
export function count(figure: Figure): string {
  return scaled(numberOf(figure), COUNTS, "");
}

/** Bytes with decimal prefixes, as the terminal has them. */
export function bytes(figure: Figure): string {
  return scaled(numberOf(figure), SIZES, " ", " B");
}

function scaled(number: number, steps: [number, string][], space: string, unit = ""): string {
  if (!Number.isFinite(number)) return "–";
  for (const [size, prefix] of steps) {
    if (Math.abs(number) >= size * 0.9995) return `${Number((number / size).toPrecision(3))}${space}${prefix}`;
  }
  return `${Number(number.toPrecision(3))}${unit}`;
}

/** Seconds in the unit that people would say. */
export function duration(seconds: number): string {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]] as [number, string][]) {
    if (seconds >= 2 * size) return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  }
  return seconds >= 1 || seconds === 0 ? `${Number(seconds.toPrecision(3))} s` : `${Number((1000 * seconds).toPrecision(3))} ms`;
}

export function percent(share: number): string {
  if (!Number.isFinite(share)) return "–";
  if (share > 0 && share < 5e-5) return "< 0.01 %";
  return `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`;
}

/** Text of a token with what cannot be seen made visible. */
export function visible(text: string): string {
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍") || "∅";
}
