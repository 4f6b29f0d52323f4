// Going to a place of a long page whose arrays come as they are seen, and staying there while they do.
import { lookAround } from "./seen";

/** Milliseconds for which what still comes above may move the place. */
const COMING = 3000;
const HANDS = ["wheel", "keydown", "pointerdown", "touchstart"];

let leave = (): void => undefined;

/** Bring a place to the top of the screen at once, and keep it there until a hand moves something. */
export function arrive(to: HTMLElement): void {
  leave();
  const there = () => to.scrollIntoView({ block: "start", behavior: "instant" });
  there();
  lookAround();
  const grown = new ResizeObserver(there);
  const over = setTimeout(() => leave(), COMING);
  leave = () => {
    grown.disconnect();
    clearTimeout(over);
    for (const kind of HANDS) removeEventListener(kind, end, true);
    leave = () => undefined;
  };
  const end = leave;
  grown.observe(document.body);
  for (const kind of HANDS) addEventListener(kind, end, true);
}
