// What is wider than the screen scrolls sideways, and the keyboard reaches it while it does.

export function reachScrolled(root: Element): () => void {
  const watched = new ResizeObserver((all) => {
    for (const { target } of all) {
      if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
      else target.removeAttribute("tabindex");
    }
  });
  for (const one of root.querySelectorAll("table, pre, figure, .example p")) watched.observe(one);
  return () => watched.disconnect();
}
