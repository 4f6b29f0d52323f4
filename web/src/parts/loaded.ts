// What is fetched when a view opens.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

/** null until it is there; asked for again when one of the inputs changes; an error becomes the page's alert. */
export function useLoaded<T>(load: () => Promise<T>, inputs: unknown[]): T | null {
  const found = useSignal<T | null>(null);
  useEffect(() => {
    let wanted = true;
    found.value = null;
    void load().then((value) => {
      if (wanted) found.value = value;
    });
    return () => {
      wanted = false;
    };
  }, inputs);
  return found.value;
}
