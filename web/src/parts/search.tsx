// Search over what a view has: names, stations, equations.
import { useSignal } from "@preact/signals";
import { useId } from "preact/hooks";

export interface Found {
  text: string;
  about: string;
  open: () => void;
}

export function Search({ label, all }: { label: string; all: Found[] }) {
  const words = useSignal("");
  const id = useId();
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = wanted.length ? all.filter((one) => wanted.every((word) => `${one.text} ${one.about}`.toLowerCase().includes(word))).slice(0, 12) : [];
  const open = (one: Found) => {
    words.value = "";
    one.open();
  };
  return (
    <search class="search">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="search"
        value={words}
        autocomplete="off"
        onInput={(event) => (words.value = event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") words.value = "";
          if (event.key === "Enter" && found[0]) open(found[0]);
        }}
      />
      {wanted.length > 0 && (
        <ul class="found" aria-live="polite">
          {found.map((one) => (
            <li key={one.text + one.about}>
              <button type="button" onClick={() => open(one)}>
                <code>{one.text}</code> <span class="quiet">{one.about}</span>
              </button>
            </li>
          ))}
          {found.length === 0 && <li class="quiet">nothing is called so</li>}
        </ul>
      )}
    </search>
  );
}
