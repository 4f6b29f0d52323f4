// The source behind `limpid serve`, and behind a notebook's kernel, which answers the same paths.
import type { EntryView, EquationsView, ErrorDocument, FindingsView, LensView, OverSteps, StepView } from "../documents";
import { entry as parsed } from "../address";
import { having, Missing } from "../service";
import { read } from "./safetensors";
import type { Api, Heard, Kind, Slice, Source, StepSource, Tile, TileRequest } from "./source";
import { asking, tileOf } from "./tile";

/** Paths as requests to the server that the page came from. */
const server: Api = {
  get: async <T>(path: string) => (await (await asked(path)).json()) as T,
  post: async <T>(path: string, body: unknown) =>
    (await (
      await asked(path, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body),
      })
    ).json()) as T,
  bytes: async (path: string) => (await asked(path)).arrayBuffer(),
  events,
};

export class Http implements Source {
  only = null;
  private equationsPage: Promise<EquationsView> | null = null;
  private steps = new Map<string, HttpStep>();

  constructor(readonly api: Api = server) {}

  step(run: string, step: number): StepSource {
    const path = `api/runs/${encodeURIComponent(run)}/steps/${step}`;
    const found = this.steps.get(path) ?? new HttpStep(this.api, path);
    this.steps.set(path, found);
    return found;
  }

  equations(): Promise<EquationsView> {
    return (this.equationsPage ??= this.api.get<EquationsView>("api/equations"));
  }
}

/** Entries that one comes back to without asking again. */
const HELD = 64;

class HttpStep implements StepSource {
  readonly isServed = true;
  private page: Promise<StepView> | null = null;
  private readonly entries = new Map<string, Promise<EntryView>>();

  constructor(
    private readonly api: Api,
    private readonly path: string,
  ) {}

  document(heard: Heard = () => undefined): Promise<StepView> {
    this.page ??= this.having(() => this.api.get<StepView>(this.path), "record", {}, heard);
    this.page.catch(() => (this.page = null)); // asked for again, it may be there
    return this.page;
  }

  private having<T>(ask: () => Promise<T>, make: string, body: unknown, heard: Heard): Promise<T> {
    return having(this.api, ask, `${this.path}/${make}`, body, (doing, _, { done, total }) => heard(total ? `${doing} (${done} of ${total})` : doing));
  }

  async slice(entry: string, kind: Kind): Promise<Slice> {
    const path = `${this.path}/slice?${new URLSearchParams({ entry, kind })}`;
    const { name } = parsed(entry);
    const tensors = read(await this.having(() => this.api.bytes(path), "exact", { name }, () => undefined));
    const slice = tensors.get("data");
    if (!slice) throw new Error(`${entry}: the server sent no slice`);
    return { ...slice, hidden: tensors.get("hidden")?.data ?? null } as Slice;
  }

  async tiles(request: TileRequest): Promise<Tile> {
    const query = new URLSearchParams({ ...asking(request), kind: request.kind });
    return tileOf(await this.api.bytes(`${this.path}/tiles?${query}`));
  }

  explain(entry: string): Promise<EntryView> {
    const found = this.entries.get(entry) ?? this.api.get<EntryView>(`${this.path}/explain?${new URLSearchParams({ entry })}`);
    found.catch(() => this.entries.delete(entry));
    this.entries.delete(entry);
    this.entries.set(entry, found); // the newest stands last
    for (const old of [...this.entries.keys()].slice(0, -HELD)) this.entries.delete(old);
    return found;
  }

  lens(row: number, first: number, count: number): Promise<LensView> {
    return this.api.get<LensView>(`${this.path}/lens?row=${row}&first=${first}&count=${count}`);
  }

  async findings() {
    return (await this.api.get<FindingsView>(`${this.path}/findings`)).findings;
  }

  overSteps(entry: string, what: "entry" | "norm"): Promise<OverSteps> {
    const run = this.path.replace(/\/steps\/\d+$/, "");
    return this.api.get<OverSteps>(`${run}/over-steps?${new URLSearchParams({ entry, what })}`);
  }
}

/** Raises the one line that the server answers with when something cannot be had. */
async function asked(path: string, options?: RequestInit): Promise<Response> {
  const answer = await fetch(path, options).catch(() => {
    throw new Error("the server does not answer: start limpid serve again, and reload");
  });
  if (answer.ok) return answer;
  const said = (await answer.json().catch(() => null)) as Partial<ErrorDocument> | null;
  throw refusal(said, `${path}: ${answer.status} ${answer.statusText}`);
}

/** The error that an answer is. */
export function refusal(said: Partial<ErrorDocument> | null, otherwise: string): Error {
  const why = said?.error ?? otherwise;
  return said?.missing ? new Missing(why) : new Error(why);
}

function events(path: string, heard: (kind: string, data: unknown) => void): () => void {
  const stream = new EventSource(path);
  const hear = (event: MessageEvent<string>) => heard(event.type, JSON.parse(event.data));
  for (const kind of ["rows", "findings", "samples", "state", "restart", "progress", "end"])
    stream.addEventListener(kind, (event) => {
      if (event instanceof MessageEvent) hear(event as MessageEvent<string>);
    });
  return () => stream.close();
}
