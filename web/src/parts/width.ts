// How wide a picture may be, so that it is drawn in pixels and its words keep their size.
import { useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** The width of an element in pixels, between two limits, and the element that it is of. */
export function useWidth<E extends HTMLElement>(least: number, most: number): [number, RefObject<E | null>] {
  const width = useSignal(most);
  const element = useRef<E>(null);
  useLayoutEffect(() => {
    const box = element.current;
    if (!box) return;
    const measure = () => (width.value = Math.max(least, Math.min(most, Math.floor(box.clientWidth))));
    measure();
    const sized = new ResizeObserver(measure);
    sized.observe(box);
    return () => sized.disconnect();
  }, []);
  return [width.value, element];
}
