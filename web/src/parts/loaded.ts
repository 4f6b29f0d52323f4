// What is fetched when a view opens.
import { signal } from "@preact/signals";
import { useLayoutEffect, useMemo } from "preact/hooks";

/** null until it is there; asked for again when one of the inputs changes; an error becomes the page's alert. */
export function useLoaded<T>(load: () => Promise<T>, inputs: unknown[]): T | null {
  const found = useMemo(() => signal<T | null>(null), inputs); // what was found of other inputs is not shown beside these
  useLayoutEffect(() => {
    let wanted = true;
    void Promise.resolve().then(async () => {
      if (!wanted) return; // drawn again with other inputs before it was painted
      const value = await load();
      if (wanted) found.value = value;
    });
    return () => {
      wanted = false;
    };
  }, inputs);
  return found.value;
}
