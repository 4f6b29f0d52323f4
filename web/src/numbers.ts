// Numbers as Python writes them: {:.6g}, {:.8g}, repr.
import type { Numeric } from "./documents";

/** A document's number, words included, as a number. */
export function numeric(value: Numeric): number {
  return typeof value === "number" ? value : value === "nan" ? NaN : value === "inf" ? Infinity : -Infinity;
}

/** As format(value, f".{digits}g") in Python. */
export function general(value: number, digits = 6): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  const [mantissa = "", power = "0"] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent < -4 || exponent >= digits) {
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${trimmed(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  return trimmed(value.toFixed(Math.max(0, digits - 1 - exponent)));
}

/** Every digit that there is: the shortest text that reads back as the same number. */
export function exact(value: number): string {
  if (!Number.isFinite(value)) return general(value);
  const text = String(value);
  return text.replace(/e([+-])(\d)$/, "e$10$2");
}

/** A number with a space between a minus sign that can be read and its digits nowhere: − instead of -. */
export function signed(text: string): string {
  return text.replace(/^-/, "−");
}

/** 68.7 G, 1.2 M: three digits and the letter of a thousand. */
export function si(value: number): string {
  const letters = ["", " k", " M", " G", " T", " P", " E"];
  const power = value < 1000 ? 0 : Math.min(letters.length - 1, Math.floor(Math.log10(value) / 3));
  return `${general(value / 1000 ** power, 3)}${letters[power]}`;
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}
