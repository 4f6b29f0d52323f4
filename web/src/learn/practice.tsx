// An exercise: its numbers, an answer, what is said to it, hints one by one, the solution.
import { useSignal } from "@preact/signals";

import { print } from "../address";
import type { RunOverview } from "../documents";
import { opened } from "../opened";
import { useAnswer } from "../service";
import type { Api } from "../source/source";
import type { Chosen } from "./chosen";
import type { ExerciseView } from "./documents";
import { type Numbers, WORKED } from "./seeds";
import { OtherNumbers, Sitting } from "./sitting";
import { arrived } from "./wanted";

interface Props extends Chosen {
  api: Api;
  name: string;
}

export function Practice({ api, name, numbers, onNumbers }: Props) {
  const answer = useAnswer<ExerciseView>(api, pathOf(name, numbers)).value;
  const own = useOwnStep(api);
  const shown = answer.state === "here" ? answer.value : null;
  return (
    <section class="exercise" aria-labelledby={`exercise-${name}`}>
      <h3 id={`exercise-${name}`}>Exercise: {name}</h3>
      {answer.state === "refused" && <p role="alert">{answer.reason}</p>}
      {shown && <Asked key={pathOf(name, numbers)} api={api} exercise={shown} numbers={numbers} />}
      <OtherNumbers numbers={numbers} onNumbers={onNumbers}>
        {shown?.own && !numbers.of && (
          <button type="button" onClick={() => onNumbers({ seed: 0, of: own })}>
            with numbers of {own === WORKED ? "the worked model's step" : "my step"}
          </button>
        )}
      </OtherNumbers>
    </section>
  );
}

function pathOf(name: string, { seed, of }: Numbers): string {
  const query = new URLSearchParams({ seed: String(seed), ...(of ? { run: of.run, step: String(of.step) } : {}) });
  return `api/learn/exercises/${encodeURIComponent(name)}?${query}`;
}

/** The step that was opened last, or the last recorded one of the run that was; else the worked model's. */
function useOwnStep(api: Api): { run: string; step: number } {
  const last = opened.value;
  const unknown = last !== null && last.step === null;
  const run = useAnswer<RunOverview>(api, unknown ? `api/runs/${encodeURIComponent(last.run)}` : null).value;
  if (last !== null && last.step !== null) return { run: last.run, step: last.step };
  const recorded = run.state === "here" ? run.value.recorded.at(-1) : undefined;
  return last !== null && recorded !== undefined ? { run: last.run, step: recorded } : WORKED;
}

function Asked({ api, exercise, numbers }: { api: Api; exercise: ExerciseView; numbers: Numbers }) {
  const { exercise: name, hints, solution } = exercise;
  const typed = useSignal("");
  const isDone = useSignal(false);
  return (
    <>
      <p class="lines">{exercise.question}</p>
      <Sitting api={api} name={name} numbers={numbers} hints={hints} solution={solution} answer={typed} onDone={() => (isDone.value = true)}>
        <label class="field" for={`answer-${name}`}>
          <span>Answer</span>
          <input
            ref={(field) => arrived(name, field)}
            id={`answer-${name}`}
            value={typed}
            autocomplete="off"
            autocapitalize="off"
            spellcheck={false}
            aria-describedby={`says-${name}`}
            onInput={(event) => (typed.value = event.currentTarget.value)}
          />
        </label>
      </Sitting>
      {isDone.value && exercise.entry && numbers.of && <Where of={numbers.of} entry={exercise.entry} />}
    </>
  );
}

/** Once it is answered: the entry of the step that was asked about. */
function Where({ of, entry }: { of: { run: string; step: number }; entry: string }) {
  if (of.run === WORKED.run)
    return (
      <p>
        In that step: <code>limpid explain --worked "{entry}"</code>
      </p>
    );
  return (
    <p>
      In that step: <a href={print({ view: "step", ...of, entry })}>{entry}</a>
    </p>
  );
}
