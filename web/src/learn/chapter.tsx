// A chapter: its text with signs that say what they mean, figures to move, exercises to try, and where it happens in a step.
import { useEffect, useRef } from "preact/hooks";

import { print } from "../address";
import { useLoaded } from "../parts/loaded";
import type { Api } from "../source/source";
import { useChosen } from "./chosen";
import type { ChapterPart, ChapterView } from "./documents";
import { move } from "./figures/move";
import { InYourStep } from "./in_your_step";
import { chapterAt, type LearnAddress } from "./learn";
import { Practice } from "./practice";
import { reachScrolled } from "./scrolled";
import { explainSigns, reachable } from "./signs";
import { toAnswer } from "./wanted";

export function Chapter({ api, address }: { api: Api; address: LearnAddress }) {
  const found = useLoaded(() => api.get<ChapterView>(`api/learn/${encodeURIComponent(address.chapter)}`), [api, address.chapter]);
  if (!found) return <p class="quiet loading">Computing the numbers of the chapter…</p>;
  return <Read key={found.row.name} api={api} chapter={found} query={address.query} />;
}

function Read({ api, chapter, query }: { api: Api; chapter: ChapterView; query: string }) {
  const { row } = chapter;
  const article = useRef<HTMLElement>(null);
  const title = useRef<HTMLHeadingElement>(null);
  const chosen = useChosen(row.name, query);
  useEffect(() => {
    scrollTo(0, 0);
    title.current?.focus({ preventScroll: true });
    return article.current ? explainSigns(article.current) : undefined;
  }, []);
  return (
    <article class="learn" ref={article}>
      <h1 ref={title} tabIndex={-1}>
        {row.number} {row.title}
      </h1>
      <p>{row.purpose}</p>
      <p class="quiet">
        About {row.minutes} {row.minutes === 1 ? "minute" : "minutes"}. Rest on a sign to see what it means; with the keyboard, Tab reaches the formulas.
      </p>
      {row.exercises.length > 0 && <ToExercises names={row.exercises} />}
      {chapter.parts.map((part, at) =>
        part.exercise === null ? (
          <Html key={at} part={part} />
        ) : (
          <Practice key={at} api={api} name={part.exercise} {...chosen(part.exercise)} />
        ),
      )}
      <InYourStep entry={chapter.opens} />
      <nav class="line-up" aria-label="chapters">
        {chapter.before && <a href={chapterAt(chapter.before)}>← {chapter.before.title}</a>}
        <a href={print({ view: "learn", chapter: "", query: "" })}>contents</a>
        {chapter.after && <a href={chapterAt(chapter.after)}>{chapter.after.title} →</a>}
      </nav>
    </article>
  );
}

/** The only other place that sets HTML: the chapters of limpid itself, never text of a run. */
function Html({ part }: { part: ChapterPart }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!place.current) return;
    reachable(place.current);
    const ends = [move(place.current), reachScrolled(place.current)];
    return () => {
      for (const end of ends) end();
    };
  }, [part]);
  return <div ref={place} class={`part-${part.kind}`} dangerouslySetInnerHTML={{ __html: part.html }} />;
}

/** Past all formulas, to what one came to try. */
function ToExercises({ names }: { names: readonly string[] }) {
  return (
    <p class="to-exercises">
      To the exercises:{" "}
      {names.map((name) => (
        <button key={name} type="button" class="plain" onClick={() => toAnswer(name)}>
          {name}
        </button>
      ))}
    </p>
  );
}
