// The source of one self-contained file: documents and arrays lie inside the page, compressed.
import type { EntryView, EquationsView, FindingsView, LensView, StepView } from "../documents";
import { entry as parsed, written } from "../address";
import { moments } from "./adamw";
import { Explainer, type Packed } from "./explainer";
import { read, type Tensor } from "./safetensors";
import type { Kind, Slice, Source, StepSource, Tile } from "./source";

export interface FileDocument extends Packed {
  home: string;
  view: StepView;
  /** Entries that are explained in full where the step is too large to be packed whole. */
  explained?: Record<string, EntryView>;
  /** By row of the batch, of the first rows. */
  lens?: LensView[];
  findings?: FindingsView;
}

export class File implements Source {
  api = null;
  readonly only: { run: string; step: number };
  private readonly source: FileStep;

  constructor(
    readonly document: FileDocument,
    arrays: Map<string, Tensor>,
    private readonly equationsText: Promise<string>,
  ) {
    this.only = { run: nameOf(document), step: document.view.step.step };
    this.source = new FileStep(document, arrays);
  }

  /** Whether every number of the step is here. */
  get isWhole(): boolean {
    return this.document.entries !== undefined;
  }

  step(): StepSource {
    return this.source;
  }

  async equations(): Promise<EquationsView> {
    return JSON.parse(await this.equationsText) as EquationsView;
  }
}

/** What the file's step is called in addresses: the run's name, or worked. */
function nameOf(document: FileDocument): string {
  const at = /^#\/([^/]+)/.exec(document.home);
  return at?.[1] ? decodeURIComponent(at[1]) : "step";
}

/** The file that the page lies in. */
export async function inPage(): Promise<File> {
  const [text, arrays] = await Promise.all([unpacked("step"), unpacked("arrays")]);
  const equations = unpacked("equations").then((bytes) => new TextDecoder().decode(bytes));
  return new File(JSON.parse(new TextDecoder().decode(text)) as FileDocument, read(arrays), equations);
}

async function unpacked(id: string): Promise<ArrayBuffer> {
  const text = atob(document.getElementById(id)?.textContent ?? "");
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

class FileStep implements StepSource {
  readonly isServed = false;
  private readonly explainer: Explainer;

  constructor(
    private readonly file: FileDocument,
    private readonly arrays: Map<string, Tensor>,
  ) {
    this.explainer = new Explainer(file, file.view, arrays);
  }

  async document(): Promise<StepView> {
    return this.file.view;
  }

  async slice(entry: string, kind: Kind): Promise<Slice> {
    const { name, index } = parsed(entry);
    const around = /^(m|v|update)\((.+)\)$/.exec(name);
    const bare = around?.[2] ?? name;
    const where = around?.[1] ?? kind;
    const tensor = this.arrays.get(`${where}/${bare}`) ?? this.moment(where, bare);
    if (!tensor) throw new Error(`${entry}: this file has no ${kind} of it; limpid serve has`);
    const hidden = this.arrays.get(`hidden/${bare}`)?.data as Uint8Array | undefined;
    const shape = tensor.shape.slice(index.length);
    const size = shape.reduce((a, b) => a * b, 1);
    const start = index.reduce((at, i, axis) => at * (tensor.shape[axis] ?? 1) + i, 0) * size;
    return { shape, data: tensor.data.subarray(start, start + size) as Slice["data"], hidden: hidden ?? null };
  }

  /** What AdamW remembers after its first update follows from the gradient; a file of a whole step does not repeat it. */
  private moment(which: string, name: string): Tensor | null {
    const gradient = this.arrays.get(`gradient/${name}`);
    const update = this.file.update;
    if (!gradient || !update || (which !== "m" && which !== "v")) return null;
    return { shape: gradient.shape, data: Float64Array.from(gradient.data, (one) => moments(update, one)[which]) };
  }

  async tiles(): Promise<Tile> {
    throw new Error("a file holds whole arrays, no tiles");
  }

  async lens(row: number, first: number, count: number): Promise<LensView | null> {
    const whole = this.file.lens?.[row];
    if (!whole) return null;
    const layers = whole.layers.map((layer) => ({ ...layer, cells: layer.cells.slice(first, first + count) }));
    return { ...whole, first, positions: whole.targets.length, targets: whole.targets.slice(first, first + count), layers };
  }

  async findings() {
    return this.file.findings?.findings ?? [];
  }

  /** A file holds one step. */
  async overSteps(): Promise<null> {
    return null;
  }

  async explain(asked: string): Promise<EntryView> {
    const at = parsed(asked);
    if (this.file.entries) return this.explainer.explain(at);
    const bare = /^(?:grad|m|v|ema|update)\((.+)\)$/.exec(at.name)?.[1] ?? at.name;
    const found = this.file.explained?.[written({ name: bare, index: at.index })];
    if (found) return found;
    const run = decodeURIComponent(/^#\/([^/]+)/.exec(this.file.home)?.[1] ?? "RUN");
    throw new Error(
      `${asked} is not written out in this file, which holds the strongest ways only: ` +
        `limpid explain ${run}@${this.file.view.step.step} '${asked}' writes it out`,
    );
  }
}
