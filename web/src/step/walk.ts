// The entries that were gone through, in their order.
import { signal } from "@preact/signals";

export const walk = signal<string[]>([]);

/** Remember an entry; going back to one forgets what came after it. */
export function visit(entry: string): void {
  const at = walk.value.indexOf(entry);
  walk.value = at >= 0 ? walk.value.slice(0, at + 1) : [...walk.value, entry].slice(-50);
}
