// The teacher's sheet: exercises, seeds, answers or none, as it will be printed. What is chosen stands in the address.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { print } from "../address";
import { useLoaded } from "../parts/loaded";
import { useAnswer } from "../service";
import type { Api } from "../source/source";
import type { ChapterRow, LearnContents, SheetView } from "./documents";

/** Instead of a chapter's name, in an address. */
export const SHEET = "sheet";

interface Choice {
  exercises: readonly string[];
  seeds: string;
  answers: boolean;
  slips: boolean;
}

export function Sheet({ api, query }: { api: Api; query: string }) {
  const title = useRef<HTMLHeadingElement>(null);
  const contents = useLoaded(() => api.get<LearnContents>("api/learn"), [api]);
  const choice = useSignal(fromQuery(query));
  useEffect(() => {
    choice.value = fromQuery(query);
  }, [query]);
  useEffect(() => title.current?.focus({ preventScroll: true }), [contents]);
  const choose = (changed: Partial<Choice>) => {
    choice.value = { ...choice.value, ...changed };
    history.replaceState(null, "", print({ view: "learn", chapter: SHEET, query: toQuery(choice.value) }));
  };
  if (!contents) return <p class="quiet loading">Looking for the exercises…</p>;
  const { seeds, answers, slips } = choice.value;
  const exercises = contents.chapters.flatMap((row) => row.exercises).filter((name) => choice.value.exercises.includes(name)); // an address may name others
  const path = exercises.length && numbers(seeds).length ? `api/learn/sheet?${asked({ ...choice.value, exercises })}` : null;
  return (
    <div class="learn">
      <div class="sheet-form">
        <h1 ref={title} tabIndex={-1}>
          A sheet to print
        </h1>
        <p>Each seed is a sheet with numbers of its own; the same seed gives the same sheet anywhere, in the terminal, too.</p>
        <div class="sheet-chapters">
          {contents.chapters.filter((row) => row.exercises.length).map((row) => (
            <ChapterChoice key={row.name} row={row} chosen={exercises} onChosen={(exercises) => choose({ exercises })} />
          ))}
        </div>
        <div class="line-up">
          <label class="field">
            <span>seeds, such as 1, 2, 3</span>
            <input value={seeds} inputMode="numeric" autocomplete="off" onInput={(event) => choose({ seeds: event.currentTarget.value })} />
          </label>
          <label class="check">
            <input type="checkbox" checked={answers} onChange={(event) => choose({ answers: event.currentTarget.checked })} /> with answers
          </label>
          <label class="check">
            <input type="checkbox" checked={slips} onChange={(event) => choose({ slips: event.currentTarget.checked })} /> with the likely slips
          </label>
          <button type="button" disabled={path === null} onClick={() => window.print()}>
            print
          </button>
        </div>
        {path === null && <p role="status">Choose an exercise, and a seed: a whole number.</p>}
        <p>
          <a href={print({ view: "learn", chapter: "", query: "" })}>contents</a>
        </p>
      </div>
      {path !== null && <Paper api={api} path={path} />}
    </div>
  );
}

/** A chapter's box chooses all of its exercises, or none. */
function ChapterChoice({ row, chosen, onChosen }: { row: ChapterRow; chosen: readonly string[]; onChosen: (exercises: readonly string[]) => void }) {
  const of = row.exercises.filter((name) => chosen.includes(name));
  const without = (names: readonly string[]) => chosen.filter((name) => !names.includes(name));
  return (
    <div role="group" aria-label={row.title}>
      <label class="check">
        <input
          type="checkbox"
          checked={of.length === row.exercises.length}
          indeterminate={of.length > 0 && of.length < row.exercises.length}
          onChange={(event) => onChosen(event.currentTarget.checked ? [...without(row.exercises), ...row.exercises] : without(row.exercises))}
        />{" "}
        <b>{row.title}</b>
      </label>
      {row.exercises.map((name) => (
        <label key={name} class="check">
          <input type="checkbox" checked={chosen.includes(name)} onChange={(event) => onChosen(event.currentTarget.checked ? [...chosen, name] : without([name]))} /> {name}
        </label>
      ))}
    </div>
  );
}

/** The sheet as it is printed, in a tree of its own: the page's style does not reach into it. The server wrote it. */
function Paper({ api, path }: { api: Api; path: string }) {
  const answer = useAnswer<SheetView>(api, path).value;
  const place = useRef<HTMLDivElement>(null);
  const sheet = answer.state === "here" ? answer.value : null;
  useEffect(() => {
    if (!place.current || !sheet) return;
    const root = place.current.shadowRoot ?? place.current.attachShadow({ mode: "open" });
    const style = new CSSStyleSheet();
    style.replaceSync(sheet.style);
    root.adoptedStyleSheets = [style];
    root.innerHTML = `<div class="sheet">${sheet.html}</div>`;
  }, [sheet]);
  return (
    <>
      {answer.state === "refused" && <p role="alert">{answer.reason}</p>}
      <div ref={place} class="sheet-paper" />
    </>
  );
}

function numbers(seeds: string): string[] {
  const found = seeds.split(/[\s,;]+/).filter(Boolean);
  return found.every((one) => /^\d{1,9}$/.test(one)) ? found : [];
}

function asked({ exercises, seeds, answers, slips }: Choice): string {
  const query = new URLSearchParams({ answers: answers ? "1" : "0", slips: slips ? "1" : "0" });
  for (const name of exercises) query.append("exercise", name);
  for (const seed of numbers(seeds)) query.append("seed", seed);
  return query.toString();
}

function fromQuery(query: string): Choice {
  const found = new URLSearchParams(query);
  const exercises = (found.get("of") ?? "").split(",").filter(Boolean);
  return { exercises, seeds: found.get("seeds") ?? "1", answers: found.get("answers") !== "0", slips: found.get("slips") === "1" };
}

function toQuery({ exercises, seeds, answers, slips }: Choice): string {
  const query = new URLSearchParams({ of: exercises.join(","), seeds, ...(answers ? {} : { answers: "0" }), ...(slips ? { slips: "1" } : {}) });
  return query.toString().replaceAll("%2C", ",").replaceAll("+", "%20");
}
