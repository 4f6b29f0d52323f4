// A number, typed or by slider, as each format stores it: its bits, and what rounding did to it.
import { useSignal } from "@preact/signals";

import { bits, type Stored } from "./rounding";
import { scientific, Slider } from "./slider";

const LOWEST = -30;
const HIGHEST = 20;

export function Bits({ value: first, formats }: { value: number; formats: readonly string[] }) {
  const typed = useSignal(String(first));
  const number = useSignal(first);
  const isRead = read(typed.value) !== null;
  const power = number.value === 0 ? LOWEST : Math.log2(Math.abs(number.value));
  const take = (text: string) => {
    typed.value = text;
    number.value = read(text) ?? number.value;
  };
  const slide = (to: number) => {
    const size = Number((2 ** to).toPrecision(3));
    take(String(number.value < 0 ? -size : size));
  };
  return (
    <div class="moving bits">
      <div class="by-slider">
        <label class="field">
          <span>number</span>
          <input
            value={typed.value}
            inputMode="decimal"
            autocomplete="off"
            spellcheck={false}
            aria-invalid={!isRead}
            onInput={(event) => take(event.currentTarget.value)}
          />
        </label>
        <Slider
          label="size, by powers of two"
          value={Math.max(LOWEST, Math.min(HIGHEST, power))}
          shown={digits(Math.abs(number.value), 3)}
          min={LOWEST}
          max={HIGHEST}
          step={0.05}
          onValue={slide}
        />
      </div>
      <p class="reads" aria-live="polite">
        {isRead ? <Reads value={number.value} formats={formats} /> : <>“{typed.value.slice(0, 40)}” is no number: type one such as −0.1 or 3e−8.</>}
      </p>
      <ul>
        {formats.map((name) => (
          <Row key={name} name={name} value={number.value} stored={bits(number.value, name)} />
        ))}
      </ul>
      <p class="quiet">
        <span class="bit sign">±</span> sign, <span class="bit exponent">e</span> exponent, <span class="bit fraction">f</span> fraction
      </p>
    </div>
  );
}

/** Which formats have the number. */
function Reads({ value, formats }: { value: number; formats: readonly string[] }) {
  const exact = formats.filter((name) => bits(value, name).value === value);
  return (
    <>
      <output data-is="number">{digits(value, 17)}</output>
      {exact.length ? ` is stored exactly by ${exact.join(", ")}.` : " is in none of them: each rounds it."}
    </>
  );
}

function Row({ name, value, stored }: { name: string; value: number; stored: Stored }) {
  const fields = [
    ["sign", stored.sign],
    ["exponent", stored.exponent],
    ["fraction", stored.fraction],
  ] as const;
  const off = stored.value - value;
  return (
    <li data-format={name}>
      <b>{name}</b>
      <span class="row-of-bits" role="img" aria-label={fields.map(([field, text]) => `${field} ${text}`).join(", ")}>
        {fields.map(([field, text]) => (
          <span key={field} class="field-of-bits">
            {[...text].map((bit, at) => (
              <span key={at} class={`bit ${field}`} data-bit={bit}>
                {bit}
              </span>
            ))}
          </span>
        ))}
      </span>
      <span>
        = <output data-is="stored">{digits(stored.value, 9)}</output>
        <span class="quiet">
          , error <span data-is="error">{off === 0 ? "0" : digits(off, 3)}</span>
          {off !== 0 && value !== 0 && Number.isFinite(off) && `, ${scientific(Math.abs(off / value), 2)} of the number`}
        </span>
      </span>
    </li>
  );
}

/** A finite number, with a point or a comma; null for anything else. */
function read(text: string): number | null {
  const plain = text.trim().replace(",", ".").replaceAll("−", "-");
  return plain !== "" && Number.isFinite(Number(plain)) ? Number(plain) : null;
}

/** So many digits; far from one as a power of ten. */
function digits(value: number, most: number): string {
  if (Number.isNaN(value)) return "not a number";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-4 && size < 1e9) ? String(Number(value.toPrecision(most))).replace("-", "−") : scientific(value, Math.min(most, 9));
}
