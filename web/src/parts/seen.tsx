// What a server has is fetched when it comes near the screen: the arrays of one step are gigabytes, a kernel sends a megabyte a second.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Props {
  /** Whether to wait; without, what is inside is there at once. */
  waits: boolean;
  name: string;
  /** The room that it will take, so that nothing moves when it comes. */
  width: number;
  height: number;
  children: ComponentChildren;
}

export function Seen({ waits, name, width, height, children }: Props) {
  const seen = useSignal(!waits);
  const place = useRef<HTMLParagraphElement>(null);
  useEffect(() => {
    if (seen.value || !place.current) return;
    const near = new IntersectionObserver((found) => (seen.value ||= found.some((one) => one.isIntersecting)), {
      root: document,
      rootMargin: "100px",
    });
    near.observe(place.current);
    const printed = () => (seen.value = true);
    addEventListener("beforeprint", printed);
    return () => {
      near.disconnect();
      removeEventListener("beforeprint", printed);
    };
  }, [seen.value]);
  if (seen.value) return <>{children}</>;
  return (
    <p ref={place} class="quiet loading not-seen" style={{ width: `${width}px`, height: `${height}px` }}>
      {name}
    </p>
  );
}
