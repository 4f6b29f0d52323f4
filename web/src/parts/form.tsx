// Fields with their labels, and what is shown while an answer is awaited.
import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";

import type { Answer } from "../service";

interface Labelled {
  label: string;
  hint?: string | undefined;
}

export function Field({
  label,
  hint,
  value,
  onValue,
  choices,
  kind = "text",
  placeholder,
}: Labelled & {
  value: string;
  onValue: (value: string) => void;
  choices?: string[] | undefined;
  kind?: "text" | "number" | "search";
  placeholder?: string | undefined;
}): JSX.Element {
  const id = useId();
  return (
    <label class="field" for={id} title={hint}>
      <span>{label}</span>
      <input
        id={id}
        type={kind}
        value={value}
        placeholder={placeholder}
        list={choices && `${id}-choices`}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => onValue(event.currentTarget.value)}
      />
      {choices && (
        <datalist id={`${id}-choices`}>
          {choices.map((choice) => (
            <option key={choice} value={choice} />
          ))}
        </datalist>
      )}
    </label>
  );
}

export function Choice({
  label,
  hint,
  value,
  onValue,
  choices,
}: Labelled & { value: string; onValue: (value: string) => void; choices: (string | [string, string])[] }): JSX.Element {
  const id = useId();
  return (
    <label class="field" for={id} title={hint}>
      <span>{label}</span>
      <select id={id} value={value} onChange={(event) => onValue(event.currentTarget.value)}>
        {choices.map((choice) => {
          const [key, said] = typeof choice === "string" ? [choice, choice] : choice;
          return (
            <option key={key} value={key} selected={key === value}>
              {said}
            </option>
          );
        })}
      </select>
    </label>
  );
}

export function Slider({
  label,
  hint,
  value,
  shown,
  onValue,
  min,
  max,
  step,
}: Labelled & {
  value: number;
  shown: string;
  onValue: (value: number) => void;
  min: number;
  max: number;
  step: number;
}): JSX.Element {
  const id = useId();
  return (
    <label class="field slider" for={id} title={hint}>
      <span>
        {label} <output for={id}>{shown}</output>
      </span>
      <input
        id={id}
        type="range"
        {...{ min, max, step, value }}
        aria-valuetext={shown}
        onInput={(event) => onValue(event.currentTarget.valueAsNumber)}
      />
    </label>
  );
}

/** Buttons of which one is chosen. */
export function Segments<T extends string>({
  label,
  value,
  choices,
  onValue,
}: {
  label: string;
  value: T;
  choices: readonly (readonly [T, string])[];
  onValue: (value: T) => void;
}): JSX.Element {
  return (
    <span class="segments" role="group" aria-label={label}>
      {choices.map(([key, said]) => (
        <button key={key} type="button" aria-pressed={key === value} onClick={() => onValue(key)}>
          {said}
        </button>
      ))}
    </span>
  );
}

/** What stands in place of an answer that is not here, or the answer drawn. */
export function Awaited<T>({
  answer,
  children,
}: {
  answer: Answer<T>;
  children: (value: T) => ComponentChildren;
}): JSX.Element {
  if (answer.state === "here") return <>{children(answer.value)}</>;
  if (answer.state === "refused") {
    return (
      <p class="refused" role="alert">
        {answer.reason}
      </p>
    );
  }
  return <Waiting doing={answer.doing} share={answer.share} />;
}

export function Waiting({ doing, share }: { doing: string; share: number | null }): JSX.Element {
  return (
    <p class="waiting" role="status">
      <progress {...(share === null ? {} : { value: share })} max={1} aria-label="progress" />
      <span>{doing || "one moment"}</span>
    </p>
  );
}
