// Entries of a small step written out from what the file holds: the derivations' text, the places of what they are made
// of, and the arrays. src/limpid/view/packed.py says how they are packed; the result is limpid explain's own document.
import type { DerivationDocument, EntryDocument, EntryView, Place, StepView, Term } from "../documents";
import { type Entry } from "../address";
import { general } from "../numbers";
import { adamw, type Update } from "./adamw";
import type { Tensor } from "./safetensors";

export interface Link {
  name: string;
  operation: string;
  inputs: string[];
  equation: string;
  adjoint: string[];
}

export interface Packed {
  links: Link[];
  units: Record<string, number>;
  entries?: Record<string, Record<string, { symbols: string[]; numbers: string[] }>>;
  update?: Update;
}

interface Source {
  place: number;
  flat: number;
  share: number;
}

/** One entry of a column: what it was made of. */
interface Derived {
  symbols: string;
  numbers: string;
  value: number;
  sources: Source[];
}

const LONGEST = 200;
const HOLE = 0xe000;

export class Explainer {
  private readonly starts = new Map<string, { count: Int32Array; apart: Int32Array }>();
  private pool: Float64Array | null = null;

  constructor(
    private readonly packed: Packed,
    private readonly view: StepView,
    private readonly arrays: Map<string, Tensor>,
  ) {}

  explain({ name: asked, index: given }: Entry): EntryView {
    const name = asked.replace(/^(?:grad|m|v|ema|update)\((.+)\)$/, "$1");
    const shape = this.shape(name);
    const index = given.length === shape.length ? given : unravelled(this.largest(name), shape);
    const flat = ravelled(index, shape);
    const value = this.value(name, flat);
    const made = this.made(name, flat);
    const link = this.maker(name);
    const gradient = this.gradient(name, flat);
    const passed = this.passed(name, flat);
    const entry: EntryDocument = {
      name,
      index,
      address: address(name, index),
      value,
      note: this.note(name, index, value),
      station: this.station(name),
      made: made && link ? this.derivation(link, link.equation, made, (source) => this.from(link, source)) : null,
      roundings_off: made ? roundings(value, made.value, this.packed.units[name] ?? 1) : null,
      came_from: made && link ? this.cameFrom(link, made) : [],
      went_to: this.packed.links.filter((one) => one.inputs.includes(name)).map((one) => one.name),
      gradient,
      passed: passed.map(({ link, place, derived }) =>
        this.derivation(link, link.adjoint[place] ?? "", derived, (source) => this.backFrom(link, source)),
      ),
      to_tokens: this.toTokens(name, flat),
      to_loss: gradient === null ? [] : this.toLoss(name, flat),
      weighed_by: [],
      update: this.update(name, flat),
    };
    const mathml: Record<string, string> = {};
    for (const one of [entry.made, ...entry.passed])
      if (one?.equation) mathml[one.equation] = this.view.mathml[one.equation] ?? "";
    return { entry, mathml };
  }

  private derivation(link: Link, equation: string, derived: Derived, placed: (source: Source) => Place): DerivationDocument {
    const terms: Term[] = derived.sources.map((source) => {
      const from = placed(source);
      return { source: from, factor: from.value ? source.share / (from.value as number) : null, value: source.share };
    });
    const { symbols, numbers, value } = derived;
    return { operation: link.operation, quantity: link.name, equation, symbols, numbers, value, terms };
  }

  private maker(name: string): Link | undefined {
    return this.packed.links.find((link) => link.name === name);
  }

  private made(name: string, flat: number): Derived | null {
    const link = this.maker(name);
    return link ? this.column(name, "made", link, flat) : null;
  }

  private passed(name: string, flat: number): { link: Link; place: number; derived: Derived }[] {
    const found = [];
    for (const [number, link] of this.packed.links.entries())
      for (const [place, used] of link.inputs.entries()) {
        const derived = used === name ? this.column(name, `passed ${number} ${place}`, link, flat) : null;
        if (derived) found.push({ link, place, derived });
      }
    return found;
  }

  /** One entry of a column, its holes filled with the numbers of its sources. */
  private column(name: string, where: string, link: Link, flat: number): Derived | null {
    const text = this.packed.entries?.[name]?.[where];
    if (!text) return null;
    const part = (which: string) => this.arrays.get(`${where}/${name}/${which}`)?.data ?? new Int32Array();
    const [places, shares, apart] = [part("place"), part("share"), part("apart")];
    const { start, count, fromApart } = this.start(`${where}/${name}`, flat, part("count"), shares);
    let next = fromApart;
    const sources: Source[] = [];
    const numbers: number[] = [];
    for (let at = start; at < start + count; at++) {
      const [place, of, share] = [places[2 * at] ?? 0, places[2 * at + 1] ?? 0, shares[at] ?? -1];
      const value = place < 0 ? (this.gradient(link.name, of) ?? NaN) : this.value(link.inputs[place] ?? "", of);
      const whole = share < 0 ? (apart[next++] ?? NaN) : this.factor(share) * value;
      sources.push({ place, flat: of, share: whole });
      numbers.push(value, whole / value);
    }
    return {
      symbols: text.symbols[flat] ?? "",
      numbers: (text.numbers[flat] ?? "").replace(/[\uE000-\uE0FF]/g, (hole) =>
        general(numbers[hole.charCodeAt(0) - HOLE] ?? NaN),
      ),
      value: part("value")[flat] ?? NaN,
      sources,
    };
  }

  /** Where the sources of an entry begin in its column: counts are added up when a column is first read. */
  private start(key: string, flat: number, counts: Tensor["data"], shares: Tensor["data"]) {
    let found = this.starts.get(key);
    if (!found) {
      found = { count: new Int32Array(counts.length + 1), apart: new Int32Array(counts.length + 1) };
      for (let i = 0, at = 0; i < counts.length; i++) {
        found.apart[i + 1] = found.apart[i] ?? 0;
        for (let k = 0; k < (counts[i] ?? 0); k++) if ((shares[at++] ?? 0) < 0) found.apart[i + 1]!++;
        found.count[i + 1] = at;
      }
      this.starts.set(key, found);
    }
    return { start: found.count[flat] ?? 0, count: counts[flat] ?? 0, fromApart: found.apart[flat] ?? 0 };
  }

  private factor(share: number): number {
    if (!this.pool) {
      const parts = ["value/", "gradient/"].flatMap((kind) =>
        [...this.names()].flatMap((name) => this.arrays.get(kind + name)?.data ?? []),
      );
      this.pool = Float64Array.of(1, ...parts.flatMap((part) => [...part]));
    }
    const number = this.pool[share >> 1] ?? NaN;
    return share & 1 ? -number : number;
  }

  private names(): string[] {
    return Object.keys(this.view.arrays);
  }

  private shape(name: string): number[] {
    const tensor = this.arrays.get(`value/${name}`);
    if (!tensor) throw new Error(`the step has no quantity ${name}`);
    return tensor.shape;
  }

  private value(name: string, flat: number): number {
    return this.arrays.get(`value/${name}`)?.data[flat] ?? NaN;
  }

  private gradient(name: string, flat: number): number | null {
    return this.arrays.get(`gradient/${name}`)?.data[flat] ?? null;
  }

  private largest(name: string): number {
    const data = this.arrays.get(`value/${name}`)?.data ?? [];
    let best = 0;
    for (let i = 1; i < data.length; i++) if (Math.abs(data[i] ?? 0) > Math.abs(data[best] ?? 0)) best = i;
    return best;
  }

  private learned(name: string): boolean {
    return this.view.step.parameters.some((one) => one.name === name);
  }

  private place(name: string, flat: number, note?: string): Place {
    const index = unravelled(flat, this.shape(name));
    const value = this.value(name, flat);
    return { name, index, address: address(name, index), value, note: note ?? this.note(name, index, value) };
  }

  private gradientPlace(name: string, flat: number): Place {
    const index = unravelled(flat, this.shape(name));
    const of = `grad(${name})`;
    return { name: of, index, address: address(of, index), value: this.gradient(name, flat) ?? NaN, note: "" };
  }

  private from(link: Link, source: Source): Place {
    return this.place(link.inputs[source.place] ?? "", source.flat);
  }

  private backFrom(link: Link, source: Source): Place {
    return this.gradientPlace(link.name, source.flat);
  }

  /** Each entry once; of an embedding the token too. */
  private cameFrom(link: Link, made: Derived): Place[] {
    const found = new Map<string, Place>();
    for (const source of made.sources) {
      const place = this.from(link, source);
      if (!found.has(place.address)) found.set(place.address, place);
    }
    const [first] = made.sources;
    if (link.inputs[0] === "tokens" && first) {
      const row = unravelled(first.flat, this.shape(link.inputs[first.place] ?? ""))[0];
      const tokens = this.arrays.get("value/tokens")?.data ?? [];
      const place = this.place("tokens", [...tokens].indexOf(row ?? -1));
      found.set(place.address, place);
    }
    return [...found.values()];
  }

  private note(name: string, index: number[], value: number): string {
    const hidden = this.arrays.get(`hidden/${name}`);
    const [query = 0, key = 0] = index.slice(-2);
    if (hidden?.data[query * (hidden.shape[1] ?? 1) + key]) {
      const why = key > query ? "comes after it" : "lies outside its window";
      return `hidden by the mask: key ${key} is not seen by query ${query}, since it ${why}`;
    }
    return (name === "tokens" || name === "targets") && value >= 0 ? this.word(value) : "";
  }

  private word(token: number): string {
    return `'${this.view.words[String(token)] ?? "?"}'`;
  }

  private station(name: string): EntryDocument["station"] {
    const { quantities, parameters } = this.view.step;
    return [...quantities, ...parameters].find((one) => one.name === name)?.station ?? "loss";
  }

  /** From entry to entry, each the largest contribution to the one before, until something that was given. */
  private toTokens(name: string, flat: number): Place[] {
    const path: Place[] = [];
    let link = this.maker(name);
    while (link && path.length < LONGEST) {
      const inputs = link.inputs;
      const sources = this.column(name, "made", link, flat)?.sources ?? [];
      const source = sources.find((one) => !this.learned(inputs[one.place] ?? "")) ?? sources[0];
      if (!source) break;
      name = inputs[source.place] ?? "";
      flat = source.flat;
      const row = unravelled(flat, this.shape(name))[0] ?? 0;
      path.push(this.place(name, flat, inputs[0] === "tokens" ? `the vector of ${this.word(row)}` : ""));
      link = this.maker(name);
    }
    return path;
  }

  /** From gradient to gradient, each the largest contribution to the one before. */
  private toLoss(name: string, flat: number): Place[] {
    const path: Place[] = [];
    while (path.length < LONGEST) {
      let best: { name: string; flat: number; size: number } | null = null;
      for (const { link, derived } of this.passed(name, flat)) {
        const [first] = derived.sources;
        if (first && (!best || Math.abs(first.share) > best.size))
          best = { name: link.name, flat: first.flat, size: Math.abs(first.share) };
      }
      if (!best) break;
      path.push(this.gradientPlace(best.name, best.flat));
      ({ name, flat } = best);
    }
    return path;
  }

  private update(name: string, flat: number): string[] {
    const update = this.packed.update;
    const parameter = this.view.step.parameters.find((one) => one.name === name);
    if (!update || !parameter) return [];
    const after = this.arrays.get(`update/${name}`)?.data[flat] ?? NaN;
    return adamw(update, this.value(name, flat), this.gradient(name, flat) ?? NaN, parameter.decayed, after);
  }
}

export function address(name: string, index: number[]): string {
  return index.length ? `${name}[${index.join(", ")}]` : name;
}

function roundings(engine: number, derived: number, unit: number): number {
  if (engine === derived) return 0;
  return derived ? (engine - derived) / (unit * Math.abs(derived)) : Infinity;
}

export function ravelled(index: number[], shape: number[]): number {
  return index.reduce((flat, i, axis) => flat * (shape[axis] ?? 1) + i, 0);
}

export function unravelled(flat: number, shape: number[]): number[] {
  const index = shape.map(() => 0);
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const size = shape[axis] ?? 1;
    index[axis] = flat % size;
    flat = Math.floor(flat / size);
  }
  return index;
}
