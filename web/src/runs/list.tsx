// Every run of a folder: what it reached, how it stands; some of them to lay over each other.
import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";

import { print, type Address } from "../address";
import { count, digits, whole } from "../format";
import type { ViewProps } from "../page";
import { Awaited, Field } from "../parts/form";
import type { Api } from "../source/source";
import { apiOf, useAnswer } from "../service";
import type { RunList, RunRow } from "./documents";
import { chosen, type Key, ordered, type Order } from "./order";
import { Spark } from "./spark";

/** More curves cannot be told apart. */
const MOST = 8;
/** Lines at first, and more of them as the end comes near: a new order moves no more than can be seen. */
const LINES = 40;
const COLUMNS: [Key, string][] = [
  ["name", "run"], ["state", "state"], ["step", "step"], ["loss", "loss"], ["eval_loss", "held out"],
  ["num_tokens", "tokens"], ["tokens_per_second", "tokens/s"], ["findings", "findings"], ["last_written", "written"],
];

export function Runs({ source }: ViewProps<Extract<Address, { view: "runs" }>>) {
  const api = apiOf(source);
  const answer = useAnswer<RunList>(api, "api/runs");
  return (
    <>
      <h1>Runs</h1>
      <Awaited answer={answer.value}>
        {(list) => (
          <>
            <Table first={list} api={api} />
            <Recordings names={list.recordings} />
          </>
        )}
      </Awaited>
    </>
  );
}

/** Steps of other models, each call of which was redone: beside the runs. */
function Recordings({ names }: { names: string[] }) {
  if (names.length === 0) return null;
  return (
    <section>
      <h2>Recordings of one step</h2>
      <ul>
        {names.map((name) => (
          <li key={name}>
            <a href={print({ view: "recording", name })}>{name}</a>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Table({ first, api }: { first: RunList; api: Api }) {
  const list = useSignal(first);
  const words = useSignal("");
  const order = useSignal<Order>({ key: "last_written", down: true });
  const marked = useSignal<string[]>([]);
  const shown = useComputed(() => ordered(chosen(list.value.runs, words.value), order.value));
  useEffect(() => {
    const again = setInterval(() => {
      const living = list.value.runs.some((run) => run.state === "training");
      if (living && !document.hidden) void api.get<RunList>("api/runs").then((now) => (list.value = now), () => {});
    }, 5000);
    return () => clearInterval(again);
  }, []);
  const most = useSignal(LINES);
  const end = useRef<HTMLParagraphElement>(null);
  useEffect(() => {
    const near = new IntersectionObserver(([seen]) => seen?.isIntersecting && (most.value += LINES), { rootMargin: "400px" });
    if (end.current) near.observe(end.current);
    const all = () => (most.value = Infinity);
    addEventListener("beforeprint", all);
    return () => {
      near.disconnect();
      removeEventListener("beforeprint", all);
    };
  }, [most.value, shown.value.length]);
  const mark = (name: string) => {
    const held = marked.value;
    marked.value = held.includes(name) ? held.filter((one) => one !== name) : [...held, name];
  };
  const sort = (key: Key) => {
    const { key: old, down } = order.value;
    order.value = { key, down: key === old ? !down : key !== "name" && key !== "state" && !key.endsWith("loss") };
  };
  // lines are made once, and only moved when the order changes
  const lines = useMemo(
    () => new Map(list.value.runs.map((run) => [run, <Line key={run.name} run={run} marked={marked.value.includes(run.name)} onMark={() => mark(run.name)} />])),
    [list.value, marked.value],
  );
  if (first.runs.length === 0) {
    return (
      <p>
        No run lies in <code>{first.folder}</code> yet: <code>limpid train</code> makes one. Plan, learn and equations need none.
      </p>
    );
  }
  return (
    <>
      <div class="line-up">
        <Field label="Filter by name, state, tag or note" kind="search" value={words.value} onValue={(value) => (words.value = value)} />
        <Together marked={marked.value} />
        <p class="quiet" role="status">
          {shown.value.length === list.value.runs.length ? whole(shown.value.length) : `${whole(shown.value.length)} of ${whole(list.value.runs.length)}`} runs in <code>{first.folder}</code>
        </p>
      </div>
      <table class="runs">
        <thead>
          <tr>
            <th scope="col"><span class="unseen">laid over each other</span></th>
            {COLUMNS.map(([key, said]) => (
              <th key={key} scope="col" aria-sort={order.value.key !== key ? "none" : order.value.down ? "descending" : "ascending"}>
                <button type="button" onClick={() => sort(key)}>
                  {said}
                </button>
              </th>
            ))}
            <th scope="col" class="course">course of the loss</th>
          </tr>
        </thead>
        <tbody>
          {shown.value.slice(0, most.value).map((run) => lines.get(run))}
        </tbody>
      </table>
      {most.value < shown.value.length && (
        <p ref={end}>
          <button type="button" onClick={() => (most.value = Infinity)}>
            all {whole(shown.value.length)}
          </button>
        </p>
      )}
    </>
  );
}

function Together({ marked }: { marked: string[] }) {
  const [a = "", b = ""] = marked;
  const many = marked.length > MOST;
  return (
    <p class="together" aria-live="polite">
      {marked.length === 0 && <span class="quiet">mark runs to lay them over each other</span>}
      {marked.length > 0 && !many && <a href={`#/${marked.map(encodeURIComponent).join(",")}`}>curves of {marked.join(", ")}</a>}
      {marked.length === 2 && <a href={`#/compare/${encodeURIComponent(a)}/${encodeURIComponent(b)}`}>compare them</a>}
      {many && <span>{marked.length} are marked, and {MOST} colours can be told apart</span>}
    </p>
  );
}

function Line({ run, marked, onMark }: { run: RunRow; marked: boolean; onMark: () => void }) {
  const share = run.max_steps ? Math.min(1, run.step / run.max_steps) : 0;
  const when = new Date(1000 * run.last_written);
  return (
    <tr class={marked ? "marked" : undefined}>
      <td class="pick">
        <input type="checkbox" checked={marked} onChange={onMark} aria-label={`lay ${run.name} over others`} />
      </td>
      <th scope="row">
        <a href={`#/${encodeURIComponent(run.name)}`}>{run.name}</a>
        {run.tags.map((tag) => (
          <span key={tag} class="tag">{tag}</span>
        ))}
        {run.note && <span class="note">{run.note}</span>}
      </th>
      <td data-column="state">
        <span class={`state ${run.state}`} title={run.why || undefined}>{run.state}</span>
      </td>
      <td class="number" data-column="step">
        {whole(run.step)} <span class="quiet">/ {whole(run.max_steps)}</span>
        <span class="progress" style={{ "--share": share }} />
      </td>
      <td class="number" data-column="loss">{digits(run.loss)}</td>
      <td class="number" data-column="held out">{digits(run.eval_loss)}</td>
      <td class="number" data-column="tokens">{run.num_tokens === null ? "–" : count(run.num_tokens)}</td>
      <td class="number" data-column="tokens/s">{run.tokens_per_second === null ? "–" : count(run.tokens_per_second)}</td>
      <td class="number" data-column="findings">{run.findings ? <b class="some">{run.findings}</b> : <span class="quiet">0</span>}</td>
      <td class="number" data-column="written">
        <time dateTime={Number.isFinite(when.valueOf()) ? when.toISOString() : undefined} title={when.toLocaleString("en-GB")}>{ago(run.last_written)}</time>
      </td>
      <td class="course"><Spark curve={run.curve} /></td>
    </tr>
  );
}

function ago(seconds: number): string {
  const past = Math.max(0, Date.now() / 1000 - seconds);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]] as const) {
    if (past >= size) return `${Math.floor(past / size)} ${unit} ago`;
  }
  return "now";
}
