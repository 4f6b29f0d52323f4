// An exercise: its numbers, an answer, what is said to it, hints one by one, the solution.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import type { RunOverview } from "../documents";
import { opened } from "../opened";
import { reasonOf, useAnswer } from "../service";
import type { Api } from "../source/source";
import type { ExerciseView, GradeDocument, GradeQuestion, SittingQuestion } from "./documents";
import { another, FIRST, type Numbers, said, WORKED } from "./seeds";
import { arrived } from "./wanted";

interface Props {
  api: Api;
  name: string;
  numbers: Numbers;
  onNumbers: (numbers: Numbers) => void;
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
      <p class="numbers-of quiet">
        <span>Numbers: {said(numbers)}.</span>
        <button type="button" onClick={() => onNumbers({ ...numbers, seed: another(numbers.seed) })}>
          other numbers
        </button>
        {shown?.own && !numbers.of && (
          <button type="button" onClick={() => onNumbers({ seed: 0, of: own })}>
            with numbers of {own === WORKED ? "the worked model's step" : "my step"}
          </button>
        )}
        {(numbers.of !== null || numbers.seed !== 0) && (
          <button type="button" onClick={() => onNumbers(FIRST)}>
            the first numbers
          </button>
        )}
      </p>
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
  const { exercise: name, hints } = exercise;
  const typed = useSignal("");
  const tries = useSignal<string[]>([]);
  const hinted = useSignal(0);
  const solved = useSignal(false);
  const judged = useSignal<{ outcome: string; says: string } | null>(null);
  useEffect(() => {
    judged.value = null;
  }, [exercise]);
  const isKept = useSignal(false);
  /** Once for these numbers, with what was answered in the terminal. */
  const keep = (tries: string[], gave_up: boolean) => {
    if (isKept.value) return;
    isKept.value = true;
    const sitting: SittingQuestion = { exercise: name, tries, seed: numbers.seed, hints: hinted.value, gave_up, ...numbers.of };
    void api.post("api/learn/sittings", sitting);
  };
  const judge = (event: Event) => {
    event.preventDefault();
    if (!typed.value.trim()) return;
    const question: GradeQuestion = { exercise: name, answer: typed.value, seed: numbers.seed, tried: tries.value.filter((note) => note !== "rounded").length, ...numbers.of };
    api.post<GradeDocument>("api/learn/grade", question).then(
      (grade) => {
        tries.value = [...tries.value, grade.note];
        judged.value = grade;
        if (grade.outcome === "right") keep(tries.value, false);
      },
      (error: unknown) => (judged.value = { outcome: "unread", says: reasonOf(error) }),
    );
  };
  const solve = () => {
    solved.value = !solved.value;
    keep(tries.value, true);
  };
  return (
    <>
      <p class="lines">{exercise.question}</p>
      <form class="line-up" onSubmit={judge}>
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
        <button type="submit">judge it</button>
        <button type="button" disabled={hinted.value >= hints.length} onClick={() => hinted.value++}>
          {hinted.value ? "another hint" : "hint"}
        </button>
        <button type="button" aria-expanded={solved.value} onClick={solve}>
          solution
        </button>
      </form>
      <p id={`says-${name}`} class={`says ${judged.value?.outcome ?? ""}`} role="status" aria-live="polite">
        {judged.value?.says}
      </p>
      <ol class="hints" aria-live="polite">
        {hints.slice(0, hinted.value).map((hint) => (
          <li key={hint}>{hint}</li>
        ))}
      </ol>
      <div aria-live="polite">
        {solved.value && (
          <p class="lines solution">
            {exercise.solution}
            {exercise.where && `\nin the step: ${exercise.where}`}
          </p>
        )}
      </div>
    </>
  );
}
