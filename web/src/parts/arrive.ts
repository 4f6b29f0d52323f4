// Going to a place of a long page whose arrays come as they are seen, and staying there while they do.

/** Screens that are gone through smoothly; what is passed further on would be fetched. */
const SMOOTHLY = 2;
/** Milliseconds for which what still comes above may move the place. */
const COMING = 3000;
const HANDS = ["wheel", "keydown", "pointerdown", "touchstart"];

let leave = (): void => undefined;

/** Bring a place to the top of the screen, and keep it there until a hand moves something. */
export function arrive(to: HTMLElement): void {
  leave();
  const far = Math.abs(to.getBoundingClientRect().top) > SMOOTHLY * innerHeight;
  to.scrollIntoView({ block: "start", behavior: far ? "instant" : "auto" });
  if (!far) return;
  const grown = new ResizeObserver(() => to.scrollIntoView({ block: "start", behavior: "instant" }));
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
