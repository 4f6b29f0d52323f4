// One sitting over an exercise: what is answered is judged by the server, helped by hints, and kept once it is right or given up.
import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";

import { reasonOf } from "../service";
import type { Api } from "../source/source";
import type { GradeDocument, GradeQuestion, SittingQuestion } from "./documents";
import { another, FIRST, type Numbers, said } from "./seeds";

interface Props {
  api: Api;
  name: string;
  numbers: Numbers;
  hints: readonly string[];
  solution: string;
  /** What stands in the fields. */
  answer: Signal<string>;
  /** The fields, described by says-NAME. */
  children: ComponentChildren;
  onDone?: () => void;
}

export function Sitting({ api, name, numbers, hints, solution, answer, children, onDone }: Props) {
  const tries = useSignal<string[]>([]);
  const hinted = useSignal(0);
  const solved = useSignal(false);
  const judged = useSignal<{ outcome: string; says: string } | null>(null);
  useEffect(() => {
    judged.value = null;
  }, [solution]);
  const isKept = useSignal(false);
  /** Once for these numbers, with what was answered in the terminal. */
  const keep = (tries: string[], gave_up: boolean) => {
    onDone?.();
    if (isKept.value) return;
    isKept.value = true;
    const sitting: SittingQuestion = { exercise: name, tries, seed: numbers.seed, hints: hinted.value, gave_up, ...numbers.of };
    void api.post("api/learn/sittings", sitting);
  };
  const judge = (event: Event) => {
    event.preventDefault();
    if (!answer.value.trim()) return;
    const tried = tries.value.filter((note) => note !== "rounded").length;
    const question: GradeQuestion = { exercise: name, answer: answer.value, seed: numbers.seed, tried, ...numbers.of };
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
      <form class="line-up" onSubmit={judge}>
        {children}
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
      <div aria-live="polite">{solved.value && <p class="lines solution">{solution}</p>}</div>
    </>
  );
}

/** Which numbers an exercise has, and how to have others. */
export function OtherNumbers({ numbers, onNumbers, children }: { numbers: Numbers; onNumbers: (numbers: Numbers) => void; children?: ComponentChildren }) {
  return (
    <p class="numbers-of quiet">
      <span>Numbers: {said(numbers)}.</span>
      <button type="button" onClick={() => onNumbers({ ...numbers, seed: another(numbers.seed) })}>
        other numbers
      </button>
      {children}
      {(numbers.of !== null || numbers.seed !== 0) && (
        <button type="button" onClick={() => onNumbers(FIRST)}>
          the first numbers
        </button>
      )}
    </p>
  );
}
