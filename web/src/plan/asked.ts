// What a plan is asked, as the page's address holds it and as the server takes it.
import type { PlanForm, PlanRequest } from "./documents";

/** Words of the form, by option; those that are empty are left out. */
export type Asked = Record<string, string>;

export const FIRST: Asked = { what: "llama-3-8b", device: "h100", devices: "8", zero: "3", tokens: "1T" };

export function fromQuery(query: string): Asked {
  const found = Object.fromEntries(new URLSearchParams(query));
  return Object.keys(found).length ? found : FIRST;
}

export function toQuery(asked: Asked): string {
  return new URLSearchParams(Object.entries(asked).filter(([, value]) => value.trim() !== "")).toString();
}

const SIZES: Record<string, number> = { k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12 };

/** A number as people write it: 70B, 1.4T, 32k, 1e21; null where it is none. */
export function numberFrom(text: string): number | null {
  const found = /^\s*(\d[\d,_]*\.?\d*(?:e[+-]?\d+)?)\s*([kmbgt])?\s*$/i.exec(text);
  if (!found?.[1]) return null;
  const number = Number(found[1].replace(/[,_]/g, "")) * (SIZES[found[2]?.toLowerCase() ?? ""] ?? 1);
  return Number.isFinite(number) ? Number(number.toPrecision(15)) : null;
}

/** The request; options that are no numbers go as they stand, so that the server says what it expects. */
export function request(asked: Asked, form: PlanForm): PlanRequest {
  const kinds = new Map(form.options.map((option) => [option.name, option.kind]));
  const options: PlanRequest["options"] = {};
  for (const [name, text] of Object.entries(asked)) {
    const kind = kinds.get(name);
    if (kind === undefined || text.trim() === "") continue;
    options[name] = kind === "number" || kind === "whole" ? (numberFrom(text) ?? text) : text;
  }
  const number = (name: string) => (asked[name]?.trim() ? numberFrom(asked[name]) : null);
  return { what: asked.what?.trim() || null, options, compute: number("compute"), params: number("params") };
}
