// A longer exercise: what is to be looked into, the choices, and where the same is done in a step.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { print } from "../address";
import { useAnswer } from "../service";
import type { Api } from "../source/source";
import { useChosen } from "./chosen";
import type { PuzzleView } from "./documents";
import { InYourStep } from "./in_your_step";
import type { Numbers } from "./seeds";
import { OtherNumbers, Sitting } from "./sitting";
import { Trace } from "./trace";

/** Before the name of one, in an address. */
export const LONGER = "longer/";

export function Puzzle({ api, name, query }: { api: Api; name: string; query: string }) {
  const title = useRef<HTMLHeadingElement>(null);
  const { numbers, onNumbers } = useChosen(LONGER + name, query)(name);
  const path = `api/learn/longer/${encodeURIComponent(name)}?seed=${numbers.seed}`;
  const answer = useAnswer<PuzzleView>(api, path).value;
  useEffect(() => {
    scrollTo(0, 0);
    title.current?.focus({ preventScroll: true });
  }, []);
  return (
    <article class="learn">
      <h1 ref={title} tabIndex={-1}>
        {name}
      </h1>
      {answer.state === "refused" && <p role="alert">{answer.reason}</p>}
      {answer.state === "here" && <Asked key={path} api={api} puzzle={answer.value} numbers={numbers} />}
      <OtherNumbers numbers={numbers} onNumbers={onNumbers} />
      <nav class="line-up" aria-label="chapters">
        <a href={print({ view: "learn", chapter: "", query: "" })}>contents</a>
      </nav>
    </article>
  );
}

function Asked({ api, puzzle, numbers }: { api: Api; puzzle: PuzzleView; numbers: Numbers }) {
  const { puzzle: name, choices, hints, solution, opens } = puzzle;
  const chosen = useSignal("");
  const done = useSignal(false);
  const [asked = "", ...given] = puzzle.asked.split("\n");
  return (
    <>
      <p>{puzzle.purpose}</p>
      <section class="exercise" aria-label={`Exercise: ${name}`}>
        <p class="lines">{asked}</p>
        {given.length > 0 && (
          <pre class={choices.length === 0 ? "given" : "given aligned"} role="region" aria-label="what is given" tabIndex={0}>
            {given.join("\n")}
          </pre>
        )}
        {puzzle.looks.length > 0 && <Trace name={name} looks={puzzle.looks} />}
        <Sitting api={api} name={name} numbers={numbers} hints={hints} solution={solution} answer={chosen} onDone={() => (done.value = true)}>
          {choices.length === 0 ? (
            <label class="field">
              <span>Answer</span>
              <input
                type="text"
                size={48}
                autocomplete="off"
                spellcheck={false}
                aria-describedby={`says-${name}`}
                onInput={(event) => (chosen.value = event.currentTarget.value)}
              />
            </label>
          ) : (
            <fieldset class="choices" aria-describedby={`says-${name}`}>
              <legend>Answer</legend>
              {choices.map((choice, at) => (
                <label key={choice}>
                  <input type="radio" name={`choice-${name}`} value={at + 1} onChange={() => (chosen.value = String(at + 1))} />
                  <b>{at + 1}</b>
                  <span>{choice}</span>
                </label>
              ))}
            </fieldset>
          )}
        </Sitting>
        {done.value && opens && <InYourStep entry={opens} />}
      </section>
    </>
  );
}
