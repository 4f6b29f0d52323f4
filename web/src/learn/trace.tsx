// The trace of an exercise's own step: a quantity, one of its entries, and that entry written out with its numbers.
import { useSignal } from "@preact/signals";

import type { PuzzleView } from "./documents";

type Looks = PuzzleView["looks"];

export function Trace({ name, looks }: { name: string; looks: Looks }) {
  const entry = useSignal(looks[0]?.entry ?? "");
  const quantities = [...new Set(looks.map(({ entry }) => quantityOf(entry)))];
  const quantity = quantityOf(entry.value);
  const entries = looks.filter(({ entry }) => quantityOf(entry) === quantity);
  const first = (of: string) => looks.find(({ entry }) => quantityOf(entry) === of)?.entry ?? "";
  const written = `trace-${name}`;
  return (
    <div class="own-trace">
      <div class="line-up">
        <label class="field">
          <span>Look into the trace: quantity</span>
          <select value={quantity} aria-controls={written} onChange={(event) => (entry.value = first(event.currentTarget.value))}>
            {quantities.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <label class="field">
          <span>entry</span>
          <select value={entry.value} aria-controls={written} onChange={(event) => (entry.value = event.currentTarget.value)}>
            {entries.map(({ entry }) => (
              <option key={entry}>{entry}</option>
            ))}
          </select>
        </label>
      </div>
      <p id={written} class="lines written" aria-live="polite">
        {looks.find((one) => one.entry === entry.value)?.written}
      </p>
    </div>
  );
}

/** scores of scores[1, 0]. */
function quantityOf(entry: string): string {
  return entry.split("[")[0] ?? entry;
}
