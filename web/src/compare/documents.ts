// What the server says of two steps, checkpoints or runs beside each other.
import type { Figure } from "../format";

export type Kind = "forward" | "backward" | "update" | "weight";

/** One quantity of the step, as far as a strip shows it. */
export interface Quantity {
  name: string;
  station: string;
  block: number | null;
  kind: Kind;
}

export interface Row extends Quantity {
  shape: number[];
  /** Root mean square of the difference over that of the second. */
  relative: Figure;
  /** Largest difference of an entry, and where it is. */
  largest: Figure;
  index: number[];
  a: Figure;
  b: Figure;
  bound: Figure;
  /** The largest difference over what rounding allows; null where nothing says what it allows. */
  share: Figure;
  not_finite: number;
}

export interface Comparison {
  a: string;
  b: string;
  kind: "steps" | "checkpoints" | "runs";
  options: { name: string; a: unknown; b: unknown }[];
  same_batch: boolean | null;
  loss: { a: Figure; b: Figure } | null;
  rows: Row[];
}
