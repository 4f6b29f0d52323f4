// Two of anything beside each other: where they differ along the step, by how much, and in which cell most.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";

import type { Address } from "../address";
import { digits, numberOf } from "../format";
import type { ViewProps } from "../page";
import { Awaited, Field, Waiting } from "../parts/form";
import type { RunList } from "../runs/documents";
import { apiOf, useAnswer } from "../service";
import { PairSource } from "../source/pair";
import type { Api } from "../source/source";
import { useBounds } from "./bounds";
import type { Comparison, Row } from "./documents";
import { InCommon } from "./in-common";
import { entryOf, Rows } from "./rows";
import { Sides } from "./sides";
import { keyOf, RELATIVE, SHARE, Strip } from "./strip";

export function Compare({ source, address }: ViewProps<Extract<Address, { view: "compare" }>>) {
  return <Table key={`${address.a} ${address.b}`} api={apiOf(source)} a={address.a} b={address.b} />;
}

function Table({ api, a, b }: { api: Api; a: string; b: string }) {
  const [first, second] = [useSignal(a), useSignal(b)];
  const runs = useAnswer<RunList>(api, "api/runs").value;
  const names = runs.state === "here" ? runs.value.runs.map((run) => run.name) : [];
  const ofVariants = a.includes(":") || b.includes(":");
  const path = ofVariants ? "api/variants" : "api/compare";
  const source = useMemo(() => new PairSource(api, path, { a, b }), [api, path, a, b]);
  const answer = useAnswer<Comparison>(api, a && b ? `${path}?${new URLSearchParams({ a, b })}` : null, undefined, ofVariants ? { path: "api/variants/made", body: { a, b } } : undefined).value;
  return (
    <>
      <h1>Compare</h1>
      <form
        class="line-up compared-form"
        onSubmit={(event) => {
          event.preventDefault();
          location.hash = `#/compare/${encodeURIComponent(first.value.trim())}/${encodeURIComponent(second.value.trim())}`;
        }}
      >
        <Field label="first" value={first.value} choices={names} placeholder="001, 001/400, 001@400" onValue={(value) => (first.value = value)} />
        <Field label="second" value={second.value} choices={names} placeholder="002" onValue={(value) => (second.value = value)} />
        <button type="submit">compare</button>
        <p class="quiet">a run, RUN@STEP for a checkpoint, RUN/STEP for a recorded step; RUN@STEP:WORDS for how it is computed, as in 001@400:transformers</p>
      </form>
      {a && b && <Awaited answer={answer}>{(found) => <Shown api={api} found={found} source={source} />}</Awaited>}
    </>
  );
}

/** What two differ in; without a server, which works out what is still to come, what their comparison says. */
export function Shown({ api, found: first, source }: { api?: Api; found: Comparison; source: PairSource }) {
  const { found, doing } = useBounds(api, first);
  const chosen = useSignal<string | null>(null);
  const quantity = useSignal<string | null>(null);
  const ofVectors = found.kind === "variants";
  const bounded = found.rows.some((row) => row.share !== null);
  const value = (row: Row): number => (row.not_finite ? Number.NaN : numberOf((bounded ? row.share : row.relative) ?? 0));
  const rows = furthest(chosen.value === null ? found.rows : found.rows.filter((row) => keyOf(row) === chosen.value), value);
  const looked = rows.find((row) => row.name === quantity.value) ?? rows[0];
  return (
    <>
      <Verdict found={found} bounded={bounded} value={value} />
      {doing && <Waiting doing={doing.doing} share={doing.share} />}
      {api && found.kind === "runs" && <InCommon api={api} a={found.a} b={found.b} />}
      {found.options.length > 0 && <Differing found={found} />}
      {found.notes.length > 0 && (
        <ul class="notes">
          {found.notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
      {found.rows.length > 0 && (
        <section aria-labelledby="along">
          <h2 id="along">Along the step</h2>
          <p class="quiet">{bounded ? `Largest difference of each station${ofVectors ? ", vector by vector," : ""} in units of what rounding allows; orange is beyond it.` : "Difference of each station over its size, from a millionth to all of it."} A cell shows its quantities.</p>
          <Strip label="differences along the step" rows={found.rows} value={value} measure={bounded ? SHARE : RELATIVE} chosen={chosen.value} onChosen={(key) => (chosen.value = key)} />
          {looked && (
            <Sides
              key={`${looked.kind} ${looked.name}`}
              source={source}
              row={looked}
              names={{ a: found.a, b: found.b }}
              bounded={looked.share !== null && (ofVectors || entries(looked) <= REDONE)}
              ofVectors={ofVectors}
              to={(side, entry) => entryOf(found[side], entry)}
            />
          )}
          <Rows rows={rows} found={found} bounded={bounded} value={value} title={chosen.value ?? "every quantity"} looked={looked?.name ?? null} onLook={(name) => (quantity.value = name)} />
        </section>
      )}
    </>
  );
}

/** Entries of an array whose bounds a server works out while the page waits. */
const REDONE = 1 << 20;

function entries({ shape }: Row): number {
  return shape.reduce((a, b) => a * b, 1);
}

/** The furthest apart first; what is not finite before all. */
function furthest(rows: Row[], value: (row: Row) => number): Row[] {
  const rank = (row: Row) => (Number.isNaN(value(row)) ? Infinity : value(row));
  return [...rows].sort((a, b) => rank(b) - rank(a) || 0);
}

function Verdict({ found, bounded, value }: { found: Comparison; bounded: boolean; value: (row: Row) => number }) {
  const worst = [...found.rows].sort((x, y) => (Number.isNaN(value(y)) ? Infinity : value(y)) - (Number.isNaN(value(x)) ? Infinity : value(x)))[0];
  const order = found.rows.filter((row) => row.kind === "forward").concat(found.rows.filter((row) => row.kind !== "forward"));
  const first = order.find((row) => !(value(row) <= 1));
  return (
    <section aria-live="polite">
      <h2>
        {found.a} against {found.b}
        {bounded && <span class={first ? "outcome not" : "outcome fits"}>{first ? "not rounding" : "the same up to rounding"}</span>}
      </h2>
      {bounded && first && (
        <p>
          The first that differs by more than rounding is <code>{first.name}</code> ({first.kind}): {digits(first.a, 6)} against {digits(first.b, 6)} at [{first.index.join(", ")}].
        </p>
      )}
      {bounded && !first && worst && (
        <p>
          The largest difference is {digits(worst.share, 3)} of the bound, at <code>{worst.name}</code>.
        </p>
      )}
      {!bounded && worst && (
        <p>
          The largest change is of <code>{worst.name}</code> ({worst.kind}), by {digits(100 * numberOf(worst.relative), 3)} % of its size.
        </p>
      )}
      {found.loss && (
        <p class="number">
          loss {digits(found.loss.a, 7)} and {digits(found.loss.b, 7)}, apart by {digits(numberOf(found.loss.a) - numberOf(found.loss.b), 3)}
        </p>
      )}
      {found.same_batch === false && <p>They read different batches: their values are not of the same tokens.</p>}
    </section>
  );
}

function Differing({ found }: { found: Comparison }) {
  return (
    <section aria-labelledby="options">
      <h2 id="options">Options that differ</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="options that differ">
        <table>
          <thead>
            <tr>
              <th scope="col">option</th>
              <th scope="col">{found.a}</th>
              <th scope="col">{found.b}</th>
            </tr>
          </thead>
          <tbody>
            {found.options.map(({ name, a, b }) => (
              <tr key={name}>
                <th scope="row">
                  <code>{name}</code>
                </th>
                <td>
                  <code>{JSON.stringify(a)}</code>
                </td>
                <td>
                  <code>{JSON.stringify(b)}</code>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
