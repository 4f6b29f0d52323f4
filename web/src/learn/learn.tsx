// The primer: its contents, and its chapters.
import type { Address } from "../address";
import { print } from "../address";
import type { ViewProps } from "../page";
import { useLoaded } from "../parts/loaded";
import { apiOf, useAnswer } from "../service";
import type { Api } from "../source/source";
import { Chapter } from "./chapter";
import type { ChapterRow, LearnContents, PracticeView } from "./documents";
import { LONGER, Puzzle } from "./puzzle";
import { SHEET, Sheet } from "./sheet";

export type LearnAddress = Extract<Address, { view: "learn" }>;

export function Learn({ source, address }: ViewProps<LearnAddress>) {
  const api = apiOf(source);
  const { chapter, query } = address;
  if (chapter.startsWith(LONGER)) return <Puzzle key={chapter} api={api} name={chapter.slice(LONGER.length)} query={query} />;
  if (chapter === SHEET) return <Sheet api={api} query={query} />;
  return chapter ? <Chapter api={api} address={address} /> : <Contents api={api} />;
}

export function chapterAt(row: ChapterRow): string {
  return print({ view: "learn", chapter: row.name, query: "" });
}

function Contents({ api }: { api: Api }) {
  const found = useLoaded(() => api.get<LearnContents>("api/learn"), [api]);
  const practised = useAnswer<PracticeView>(api, "api/learn/practice").value;
  const of = practised.state === "here" ? practised.value.exercises : {};
  if (!found) return <p class="quiet loading">Computing the numbers of the chapters…</p>;
  const hours = found.chapters.reduce((sum, { minutes }) => sum + minutes, 0);
  return (
    <div class="learn">
      <h1>Learn it</h1>
      <p>
        The mathematics of a language model from the signs of its formulas on, computed by the code that trains. Each chapter needs those before it
        alone; all of them take about {hours} minutes.
      </p>
      <ol class="chapters" start={found.chapters[0]?.number ?? 0}>
        {found.chapters.map((row) => (
          <li key={row.name} value={row.number}>
            <a href={chapterAt(row)}>{row.title}</a> <span class="quiet">{row.minutes} min</span>
            <p>{row.purpose}</p>
            {row.exercises.length > 0 && <p class="quiet">Exercises: {row.exercises.map((name) => `${name}${standing(of[name])}`).join(", ")}</p>}
          </li>
        ))}
      </ol>
      <h2>Longer exercises</h2>
      <ul class="chapters">
        {found.longer.map(({ name, purpose }) => (
          <li key={name}>
            <a href={print({ view: "learn", chapter: LONGER + name, query: "" })}>{name}</a>
            {standing(of[name]) && <span class="quiet">{standing(of[name])}</span>}
            <p>{purpose}</p>
          </li>
        ))}
      </ul>
      <p>
        For a class: <a href={print({ view: "learn", chapter: SHEET, query: "" })}>a sheet of exercises to print</a>.
      </p>
      {practised.state === "refused" && <p class="quiet">What was answered is not known: {practised.reason}</p>}
    </div>
  );
}

function standing(practice: PracticeView["exercises"][string] | undefined): string {
  if (!practice) return "";
  if (practice.due) return " (due again)";
  return practice.right ? " (right)" : " (tried)";
}
