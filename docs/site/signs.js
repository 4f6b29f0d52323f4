// What a sign of an equation means, beside the pointer or the finger that is on it.
(() => {
  const note = document.createElement("div");
  note.className = "sign-says";
  note.setAttribute("role", "tooltip");
  note.hidden = true;
  document.addEventListener("DOMContentLoaded", () => document.body.append(note));

  const show = (event) => {
    const sign = event.target instanceof Element ? event.target.closest("[data-says]") : null;
    note.hidden = !sign;
    if (!sign) return;
    note.textContent = sign.dataset ? sign.dataset.says : sign.getAttribute("data-says");
    const place = sign.getBoundingClientRect();
    const left = Math.min(place.left, document.documentElement.clientWidth - note.offsetWidth - 8);
    note.style.left = `${Math.max(8, left) + window.scrollX}px`;
    note.style.top = `${place.bottom + 4 + window.scrollY}px`;
  };
  document.addEventListener("pointerover", show);
  document.addEventListener("click", show);
})();
