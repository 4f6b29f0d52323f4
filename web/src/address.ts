// Addresses: what stands behind # in the page, and what the terminal and a notebook link to.

export type Address =
  | { view: "runs" }
  | { view: "run"; run: string; query: string }
  | { view: "step"; run: string; step: number; entry: string | null }
  | { view: "compare"; a: string; b: string }
  | { view: "play"; model: string; query: string }
  | { view: "plan"; query: string }
  | { view: "what-if"; run: string; step: number; query: string }
  | { view: "learn"; chapter: string; query: string }
  | { view: "worked" }
  | { view: "given" }
  | { view: "equations" }
  | { view: "recording"; name: string }
  | { view: "unknown"; text: string };

/** One entry of an array, or a part of one: NAME[i, j, …] as `limpid explain` takes it. */
export interface Entry {
  name: string;
  index: number[];
}

export function parse(hash: string): Address {
  const text = hash.replace(/^#?\/?/, "");
  const [path = "", query = ""] = split(text, "?");
  const [first = "", second, ...rest] = path.split("/").map(decode);
  if (first === "") return { view: "runs" };
  if (first === "plan") return { view: "plan", query };
  if (first === "learn") return { view: "learn", chapter: [second, ...rest].filter(Boolean).join("/"), query };
  if (first === "equations") return { view: "equations" };
  if (first === "worked" && second === undefined) return { view: "worked" };
  if (first === "given" && second === undefined) return { view: "given" };
  if (first === "play") return { view: "play", model: [second, ...rest].filter(Boolean).join("/"), query };
  if (first === "recording") return { view: "recording", name: second ?? "" };
  if (first === "compare") return { view: "compare", a: second ?? "", b: rest.join("/") };
  if (first === "what-if") return { view: "what-if", run: second ?? "worked", step: number(rest[0]) ?? 1, query };
  if (second === undefined || second === "") return { view: "run", run: first, query };
  const step = number(second);
  if (step === null) return { view: "unknown", text };
  return { view: "step", run: first, step, entry: rest.join("/") || null };
}

export function print(address: Address): string {
  switch (address.view) {
    case "runs":
      return "#/";
    case "run":
      return asking(`#/${encode(address.run)}`, address.query);
    case "step": {
      const step = `#/${encode(address.run)}/${address.step}`;
      return address.entry === null ? step : `${step}/${encode(address.entry)}`;
    }
    case "compare":
      return address.a ? `#/compare/${encode(address.a)}/${encode(address.b)}` : "#/compare";
    case "play":
      return asking(address.model ? `#/play/${encode(address.model)}` : "#/play", address.query);
    case "learn":
      return asking(address.chapter ? `#/learn/${address.chapter.split("/").map(encode).join("/")}` : "#/learn", address.query);
    case "recording":
      return `#/recording/${encode(address.name)}`;
    case "plan":
      return asking("#/plan", address.query);
    case "what-if":
      return asking(`#/what-if/${encode(address.run)}/${address.step}`, address.query);
    case "unknown":
      return `#/${address.text}`;
    default:
      return `#/${address.view}`;
  }
}

export function entry(text: string): Entry {
  const found = /^(.*?)\s*(?:\[([^\]]*)\])?$/s.exec(text.trim());
  const inside = found?.[2]?.trim() ?? "";
  return { name: found?.[1] ?? text, index: inside ? inside.split(",").map(Number) : [] };
}

export function written({ name, index }: Entry): string {
  return index.length ? `${name}[${index.join(",")}]` : name;
}

/** What stands before a mark, and what stands behind it. */
function split(text: string, mark: string): [string, string] {
  const at = text.indexOf(mark);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function asking(address: string, query: string): string {
  return query ? `${address}?${query}` : address;
}

function number(text: string | undefined): number | null {
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : null;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Readable where a fragment may be: brackets, commas and brackets of gradients stay as they are. */
function encode(text: string): string {
  return encodeURIComponent(text)
    .replace(/%5B/g, "[")
    .replace(/%5D/g, "]")
    .replace(/%2C/g, ",")
    .replace(/%40/g, "@")
    .replace(/%3A/g, ":");
}
