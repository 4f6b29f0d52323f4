// Ways to divide a model among its devices: the memory and the time of each, and those that fit.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { bytes, duration } from "../format";
import type { Api } from "../source/source";
import { type Asked, numberFrom, request } from "./asked";
import type { PlanDocument, PlanForm } from "./documents";

/** Layouts that are tried at most: a plan takes milliseconds each. */
const MOST = 24;

interface Layout {
  zero: number;
  tensor: number;
  pipeline: number;
}

interface Row {
  layout: Layout;
  memory: number;
  fits: boolean | null;
  /** Of one step. */
  seconds: number | null;
}

export function Layouts({ api, form, asked, onAsked }: { api: Api; form: PlanForm; asked: Asked; onAsked: (asked: Asked) => void }) {
  const devices = numberFrom(asked.devices ?? "1") ?? 1;
  const rows = useSignal<Row[]>([]);
  const open = useSignal(false);
  const key = JSON.stringify(asked);
  useEffect(() => {
    let wanted = open.value && devices > 1 && !!asked.what;
    rows.value = [];
    const fill = async () => {
      for (const layout of layouts(devices)) {
        if (!wanted) return;
        const words = { ...asked, ...wordsOf(layout) };
        const row = await api.post<PlanDocument>("api/plan", request(words, form)).then((plan) => rowOf(layout, plan), () => null);
        if (wanted && row) rows.value = [...rows.value, row].sort(better);
      }
    };
    void fill();
    return () => {
      wanted = false;
    };
  }, [key, open.value]);
  if (devices < 2 || !asked.what) return null;
  const most = Math.max(...rows.value.map((row) => row.memory), 1);
  return (
    <details class="layouts" onToggle={(event) => (open.value = event.currentTarget.open)}>
      <summary>
        <h2>Ways to divide it among {devices} devices</h2>
      </summary>
      <div class="scroll" tabIndex={0} role="region" aria-label="layouts">
        <table>
          <thead>
            <tr>
              {["ZeRO", "tensor", "pipeline", "replicas"].map((name) => (
                <th key={name} scope="col" class="number">{name}</th>
              ))}
              <th scope="col">memory of one device</th>
              <th scope="col" class="number">one step</th>
              <th scope="col" />
            </tr>
          </thead>
          <tbody>
            {rows.value.map(({ layout, memory, fits, seconds }) => (
              <tr key={JSON.stringify(layout)} class={fits === false ? "out" : undefined}>
                <td class="number">{layout.zero}</td>
                <td class="number">{layout.tensor}</td>
                <td class="number">{layout.pipeline}</td>
                <td class="number">{devices / layout.tensor / layout.pipeline}</td>
                <td>
                  <span class={fits === false ? "meter over" : "meter"} style={{ "--share": memory / most }} /> <span class="number">{bytes(memory)}</span>
                  {fits === false && " does not fit"}
                </td>
                <td class="number">{seconds === null ? "–" : duration(seconds)}</td>
                <td>
                  <button type="button" class="plain" onClick={() => onAsked({ ...asked, ...wordsOf(layout) })}>
                    take it
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="quiet">Those that fit first, the fastest step first. With the gradient accumulation and micro-batch of the form: a step of more replicas holds more tokens.</p>
    </details>
  );
}

function wordsOf({ zero, tensor, pipeline }: Layout): Asked {
  return { zero: String(zero), tensor: String(tensor), pipeline: String(pipeline) };
}

/** Powers of two of tensor and pipeline parallelism that divide the devices, with ZeRO where replicas are left. */
export function layouts(devices: number): Layout[] {
  const found: Layout[] = [];
  for (let tensor = 1; tensor <= Math.min(8, devices); tensor *= 2) {
    for (let pipeline = 1; tensor * pipeline <= devices && pipeline <= 16; pipeline *= 2) {
      if (devices % (tensor * pipeline)) continue;
      const replicas = devices / tensor / pipeline;
      for (const zero of replicas === 1 ? [0] : pipeline > 1 ? [0, 1] : [0, 1, 2, 3]) found.push({ zero, tensor, pipeline });
    }
  }
  return found.slice(0, MOST);
}

function rowOf(layout: Layout, plan: PlanDocument): Row | null {
  const figures = new Map(plan.sections.flatMap((section) => section.figures).map((figure) => [figure.name, figure.value]));
  const memory = figures.get("memory.total");
  return memory === undefined ? null : { layout, memory, fits: plan.fits, seconds: figures.get("time.step") ?? null };
}

function better(a: Row, b: Row): number {
  return Number(a.fits === false) - Number(b.fits === false) || (a.seconds ?? Infinity) - (b.seconds ?? Infinity) || a.memory - b.memory;
}
