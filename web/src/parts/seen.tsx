// What a server has is fetched when it comes near the screen: the arrays of one step are gigabytes, a kernel sends a megabyte a second.
import { useSignal } from "@preact/signals";
import type { ComponentChildren, RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Pixels from the screen at which something is near. */
const NEAR = 100;

const unseen = new Set<() => void>();

/** See at once what has come near: an observer would say so a frame later. */
export function lookAround(): void {
  for (const look of unseen) look();
}

interface Props {
  /** Whether to wait; without, what is inside is there at once. */
  waits: boolean;
  name: string;
  /** The room that it will take, so that nothing moves when it comes: in pixels, and what else takes room until then. */
  width: number;
  height: number;
  room?: ComponentChildren;
  children: ComponentChildren;
}

export function Seen({ waits, name, width, height, room, children }: Props) {
  const seen = useSignal(!waits);
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const box = place.current;
    if (seen.value || !box) return;
    const look = () => (seen.value ||= isNear(box));
    queueMicrotask(look); // once all of the view stands there, and before it is painted
    unseen.add(look);
    const leave = whenNear(box, (near) => (seen.value ||= near));
    return () => {
      unseen.delete(look);
      leave();
    };
  }, [seen.value]);
  if (seen.value) return <>{children}</>;
  return (
    <div ref={place} class="loading not-seen">
      <Reading name={name} width={width} height={height} />
      {room}
    </div>
  );
}

/** What does not stand there yet, as large as it will be. */
export function Reading({ name, width, height }: { name: string; width: number; height: number }) {
  return (
    <p class="quiet loading reading" style={{ width: `${width}px`, height: `${height}px` }}>
      {name}
    </p>
  );
}

/** What a part showed when it was last near the screen: what changes elsewhere it takes up when it comes near. */
export function useWhileNear<T>(now: T, place: RefObject<HTMLElement | null>): T {
  const near = useSignal(true);
  const held = useRef(now);
  useLayoutEffect(() => (place.current ? whenNear(place.current, (is) => (near.value = is)) : undefined), []);
  if (near.value) held.current = now;
  return held.current;
}

function isNear(box: HTMLElement): boolean {
  const { top, bottom } = box.getBoundingClientRect();
  return box.getClientRects().length > 0 && bottom > -NEAR && top < innerHeight + NEAR;
}

/** Hear whether an element is near the screen, or printed; returns how to stop. */
function whenNear(box: HTMLElement, heard: (near: boolean) => void): () => void {
  const near = new IntersectionObserver((found) => heard(found.at(-1)?.isIntersecting ?? false), { root: document, rootMargin: `${NEAR}px` });
  near.observe(box);
  const printed = () => heard(true);
  addEventListener("beforeprint", printed);
  return () => {
    near.disconnect();
    removeEventListener("beforeprint", printed);
  };
}
