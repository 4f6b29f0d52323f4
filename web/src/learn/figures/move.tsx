// Which figures of a chapter can be moved: each stands above the one that is printed, made from the same settings.
import { type ComponentType, render } from "preact";

import { Angle } from "./angle";
import { Bits } from "./bits";
import { Descent } from "./descent";
import { Flow } from "./flow";
import { Rotation } from "./rotation";
import { Temperature } from "./temperature";

/** By the name that a chapter gives the figure; a component takes its settings. */
const MOVABLE: Record<string, ComponentType<any>> = { angle: Angle, bits: Bits, descent: Descent, "gradient-flow": Flow, rotation: Rotation, temperature: Temperature };

/** Draw what can be moved within an element; returns how to take it away. */
export function move(root: Element): () => void {
  const boxes: Element[] = [];
  for (const figure of root.querySelectorAll<HTMLElement>("figure[data-figure]")) {
    const Figure = MOVABLE[figure.dataset.figure ?? ""];
    if (!Figure) continue;
    const box = document.createElement("div");
    figure.prepend(box);
    figure.classList.add("moves");
    render(<Figure {...JSON.parse(figure.dataset.settings ?? "{}")} />, box);
    boxes.push(box);
  }
  return () => {
    for (const box of boxes) {
      render(null, box);
      box.parentElement?.classList.remove("moves");
      box.remove();
    }
  };
}
