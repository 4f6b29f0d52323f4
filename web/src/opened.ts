// The run, or the step of one, that was opened last: what elsewhere offers to take its numbers.
import { signal } from "@preact/signals";
import type { Address } from "./address";

export interface Opened {
  run: string;
  /** null where a run was opened, and no step of it. */
  step: number | null;
}

export const opened = signal<Opened | null>(null);

export function remember(address: Address): void {
  if (address.view === "step") opened.value = { run: address.run, step: address.step };
  if (address.view === "run" && !address.run.includes(",") && opened.value?.run !== address.run) opened.value = { run: address.run, step: null };
}
