// What a sign of a formula means: beside the pointer or the finger that is on it, and of a whole formula when the keyboard
// reaches it. Escape puts it away.
(() => {
  const note = document.createElement("div");
  const list = document.createElement("dl");
  note.className = "sign-says";
  note.id = "sign-says";
  note.setAttribute("role", "tooltip");
  note.hidden = true;
  note.append(list);
  let described = null;

  const says = (sign) => sign.getAttribute("data-says");
  const signsOf = (formula) => [...new Map([...formula.querySelectorAll("[data-says]")].map((sign) => [says(sign), sign])).values()];

  const hide = () => {
    note.hidden = true;
    described?.removeAttribute("aria-describedby");
    described = null;
  };
  const show = (signs, at) => {
    hide();
    list.replaceChildren(...signs.flatMap(lines));
    note.hidden = false;
    at.setAttribute("aria-describedby", note.id);
    described = at;
    const place = at.getBoundingClientRect();
    const left = Math.min(place.left, document.documentElement.clientWidth - note.offsetWidth - 8);
    note.style.left = `${Math.max(8, left) + window.scrollX}px`;
    note.style.top = `${place.bottom + 4 + window.scrollY}px`;
  };
  const lines = (sign) => {
    const term = document.createElement("dt");
    const formula = document.createElementNS("http://www.w3.org/1998/Math/MathML", "math");
    formula.append(...[...sign.childNodes].map((one) => one.cloneNode(true)));
    term.append(formula);
    const meaning = document.createElement("dd");
    meaning.textContent = says(sign);
    return [term, meaning];
  };
  const pointed = (event) => {
    const sign = event.target instanceof Element ? event.target.closest("[data-says]") : null;
    if (sign) show([sign], sign);
    else if (!note.contains(event.target) && (event.type === "click" || described !== document.activeElement)) hide();
  };

  document.addEventListener("DOMContentLoaded", () => {
    document.body.append(note);
    // one stop for each formula that has a sign which none before it has
    const known = new Set();
    for (const formula of document.querySelectorAll("math")) {
      const fresh = signsOf(formula).filter((sign) => !known.has(says(sign)));
      for (const sign of fresh) known.add(says(sign));
      if (fresh.length) formula.setAttribute("tabindex", "0");
    }
  });
  document.addEventListener("pointerover", pointed);
  document.addEventListener("click", pointed);
  document.addEventListener("focusin", ({ target }) => {
    if (target.localName === "math" && target.matches(":focus-visible")) show(signsOf(target), target);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", ({ key }) => key === "Escape" && hide());
})();
