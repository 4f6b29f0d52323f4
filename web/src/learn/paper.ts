// What is folded on the screen is open on paper, and folded again after it.

export function opensOnPaper(root: Element): void {
  let opened: HTMLDetailsElement[] = [];
  addEventListener("beforeprint", () => {
    opened = [...root.querySelectorAll<HTMLDetailsElement>("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
}
