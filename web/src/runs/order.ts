// Which runs a list shows, and in what order.
import { numberOf } from "../format";
import type { RunRow } from "./documents";

export type Key = "name" | "state" | "step" | "loss" | "eval_loss" | "num_tokens" | "tokens_per_second" | "findings" | "last_written";

export interface Order {
  key: Key;
  down: boolean;
}

/** Those that hold every word somewhere in their name, state, tags or note. */
export function chosen(runs: RunRow[], words: string): RunRow[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => {
    const text = [run.name, run.state, run.note, ...run.tags].join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/** Runs without the number stand last, whichever way the list goes. */
export function ordered(runs: RunRow[], { key, down }: Order): RunRow[] {
  const sign = down ? -1 : 1;
  const words = key === "name" || key === "state";
  const collator = new Intl.Collator("en", { numeric: true });
  return [...runs].sort((a, b) => {
    if (words) return sign * collator.compare(a[key] as string, b[key] as string);
    const [x, y] = [numberOf(a[key] as number | null), numberOf(b[key] as number | null)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y));
    return x === y ? 0 : sign * (x < y ? -1 : 1);
  });
}
