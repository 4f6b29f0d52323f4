// What a sign of a formula means: shown where the pointer rests on it, where it is tapped, and of a whole formula when the
// keyboard reaches it. Escape puts it away.

const LINGERS = 150;
/** Pixels between a sign and what is said of it. */
const GAP = 6;

/** Listen within an element; returns how to stop. */
export function explainSigns(root: HTMLElement): () => void {
  const note = document.createElement("div");
  const list = document.createElement("dl"); // not the note itself: a tooltip's role would take its own away
  note.className = "sign-note";
  note.id = `sign-note-${Math.random().toString(36).slice(2)}`;
  note.setAttribute("role", "tooltip");
  note.hidden = true;
  note.append(list);
  root.append(note);
  let leaving = 0;
  let described: Element | null = null;

  const hide = () => {
    note.hidden = true;
    described?.removeAttribute("aria-describedby");
    described = null;
  };
  const show = (signs: Element[], at: Element) => {
    clearTimeout(leaving);
    hide();
    list.replaceChildren(...signs.flatMap(lines));
    note.hidden = false;
    at.setAttribute("aria-describedby", note.id);
    described = at;
    place(note, at.getBoundingClientRect());
  };
  const leave = () => {
    if (described !== document.activeElement) leaving = window.setTimeout(hide, LINGERS); // the keyboard's note stays when the page scrolls below the pointer
  };

  const over = ({ target, pointerType }: PointerEvent) => {
    const sign = signAt(target);
    if (pointerType !== "touch" && sign) show([sign], sign);
    else if (note.contains(target as Node)) clearTimeout(leaving);
  };
  const out = ({ target, pointerType }: PointerEvent) => {
    if (pointerType !== "touch" && (signAt(target) || note.contains(target as Node))) leave();
  };
  const tapped = ({ target }: MouseEvent) => {
    const sign = signAt(target);
    if (sign) show([sign], sign);
    else if (!note.contains(target as Node)) hide();
  };
  const focused = ({ target }: FocusEvent) => {
    if (target instanceof Element && target.localName === "math" && target.matches(":focus-visible")) show(different(target), target);
  };
  const typed = ({ key }: KeyboardEvent) => key === "Escape" && hide();

  root.addEventListener("pointerover", over);
  root.addEventListener("pointerout", out);
  root.addEventListener("click", tapped);
  root.addEventListener("focusin", focused);
  root.addEventListener("focusout", hide);
  addEventListener("keydown", typed);
  return () => {
    clearTimeout(leaving);
    removeEventListener("keydown", typed);
    for (const [kind, heard] of [["pointerover", over], ["pointerout", out], ["click", tapped], ["focusin", focused], ["focusout", hide]] as const)
      root.removeEventListener(kind, heard as EventListener);
    note.remove();
  };
}

/** Let the keyboard reach the formulas that have a sign which none before them in this part has. */
export function reachable(part: Element): void {
  const known = new Set<string>();
  for (const formula of part.querySelectorAll("math")) {
    const new_ = different(formula).filter((sign) => !known.has(says(sign)));
    for (const sign of new_) known.add(says(sign));
    if (new_.length) formula.setAttribute("tabindex", "0");
  }
}

/** The signs of a formula, each once. */
function different(formula: Element): Element[] {
  const found = new Map<string, Element>();
  for (const sign of formula.querySelectorAll("[data-says]")) if (!found.has(says(sign))) found.set(says(sign), sign);
  return [...found.values()];
}

function signAt(target: EventTarget | null): Element | null {
  return target instanceof Element ? target.closest("[data-says]") : null;
}

function says(sign: Element): string {
  return sign.getAttribute("data-says") ?? "";
}

/** The sign, and its meaning. */
function lines(sign: Element): Element[] {
  const term = document.createElement("dt");
  const formula = document.createElementNS("http://www.w3.org/1998/Math/MathML", "math");
  formula.append(...[...sign.childNodes].map((one) => one.cloneNode(true)));
  term.append(formula);
  const meaning = document.createElement("dd");
  meaning.textContent = says(sign);
  return [term, meaning];
}

/** Below the sign, or above it where there is no room; never beyond the edge. */
function place(note: HTMLElement, sign: DOMRect): void {
  note.style.left = note.style.top = "0";
  const { width, height } = note.getBoundingClientRect();
  const below = sign.bottom + GAP;
  note.style.left = `${Math.max(8, Math.min(sign.left, document.documentElement.clientWidth - width - 8))}px`;
  note.style.top = `${below + height > innerHeight ? Math.max(0, sign.top - GAP - height) : below}px`;
}
