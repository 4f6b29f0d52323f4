// Where a step's documents and arrays come from: a server, the page's own file, or a notebook.
import type { ArrayPlace, EntryView, EquationsView, LensView, OverSteps, PlacedFinding, StepView } from "../documents";

/** What of an array is shown: the engine's value, its gradient, the mathematics' value, their difference, its share of the bound. */
export type Kind = ArrayPlace["kinds"][number];

export interface Slice {
  shape: number[];
  data: Float64Array | Float32Array | Int32Array;
  /** Where the attention mask hides an entry; null where there is no mask. */
  hidden: Uint8Array | null;
}

/** One level of the pyramid of a large array: each cell stands for 2^level × 2^level entries. */
export interface Tile {
  rows: number;
  columns: number;
  min: Float32Array;
  max: Float32Array;
  mean: Float32Array;
  rms: Float32Array;
  notFinite: Float32Array;
}

export interface TileRequest {
  name: string;
  index: number[];
  kind: Kind;
  level: number;
  row: number;
  column: number;
}

/** How far something is that takes long. */
export type Heard = (doing: string) => void;

export interface StepSource {
  /** Whether a server stands behind it, which knows the run, too. */
  isServed: boolean;
  document(heard?: Heard): Promise<StepView>;
  /** The part of an array that an entry's leading indices select: NAME[i, j] of four axes is the matrix of the last two. */
  slice(entry: string, kind: Kind): Promise<Slice>;
  tiles(request: TileRequest): Promise<Tile>;
  explain(entry: string): Promise<EntryView>;
  /** The logit lens at so many positions of a row, as many as are to be had at once; null where it is not known. */
  lens(row: number, first: number, count: number): Promise<LensView | null>;
  /** What the doctor found in the run, where it points into this step. */
  findings(): Promise<PlacedFinding[]>;
  /** An entry, or the norm of an array, over the recorded steps of the run; null where this step alone is known. */
  overSteps(entry: string, what: "entry" | "norm"): Promise<OverSteps | null>;
}

/** What only a server can do: runs, live events, jobs. */
export interface Api {
  get<T>(path: string): Promise<T>;
  post<T>(path: string, body: unknown): Promise<T>;
  bytes(path: string): Promise<ArrayBuffer>;
  /** Server-sent events; returns how to stop. */
  events(path: string, heard: (kind: string, data: unknown) => void): () => void;
}

export interface Source {
  step(run: string, step: number): StepSource;
  equations(): Promise<EquationsView>;
  /** null in a file, which has the one step it was made of. */
  api: Api | null;
  /** The one step of a file or a notebook cell. */
  only: { run: string; step: number } | null;
}
