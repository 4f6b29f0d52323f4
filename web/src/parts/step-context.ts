// The step that is on show: what every part of its view needs.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { ReadonlySignal, Signal } from "@preact/signals";
import type { PlacedFinding, StepView } from "../documents";
import { print, written, type Entry } from "../address";
import type { StepSource } from "../source/source";

export interface Shown {
  source: StepSource;
  view: StepView;
  run: string;
  step: number;
  /** Which row of the batch is on show. */
  row: Signal<number>;
  /** The entry that the address names: what reads it is drawn again when it changes, and nothing else is. */
  entry: ReadonlySignal<Entry | null>;
  /** What the doctor found in the run, where it points into this step. */
  findings: ReadonlySignal<PlacedFinding[]>;
}

export const StepContext = createContext<Shown | null>(null);

export function useStep(): Shown {
  const found = useContext(StepContext);
  if (!found) throw new Error("this part stands outside a step");
  return found;
}

/** Go to an entry: the address changes, and the view follows. */
export function go({ run, step }: Shown, entry: Entry): void {
  location.hash = print({ view: "step", run, step, entry: written(entry) });
}

/** Whether all of an array can be looked at: a file of a large step holds a corner of each. */
export function isWhole(view: StepView, name: string): boolean {
  const made = [...view.step.quantities, ...view.step.parameters].find((one) => one.name === name);
  return !made || String(made.shape) === String(view.arrays[name]?.shape);
}

/** A record that is sent whole, array by array, in bytes. */
const SMALL = 4_000_000;

/** Whether arrays are asked for when they come near the screen. */
export function waits({ source, view }: Shown): boolean {
  return source.isServed && view.record_bytes > SMALL;
}

/** The text along an axis, where there is any. */
export function labels(view: StepView, axis: string, size: number, row: { value: number }): string[] | null {
  if (axis === "position" || axis === "query" || axis === "key") {
    const text = view.tokens[row.value]; // read here alone: what has no text is not drawn again for another row
    return text && text.length >= size ? text.slice(0, size) : null;
  }
  if (axis === "vocab" && size <= 512) {
    const words = Array.from({ length: size }, (_, id) => view.words[String(id)]);
    return words.some((word) => word !== undefined) ? words.map((word, id) => word ?? String(id)) : null;
  }
  return null;
}
