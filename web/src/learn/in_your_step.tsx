// Where the same happens in a recorded step: the one that was opened last, or how to open one.
import { print } from "../address";
import { opened } from "../opened";

export function InYourStep({ entry }: { entry: string }) {
  const last = opened.value;
  return (
    <p>
      In a step of yours:{" "}
      {last && last.step !== null ? (
        <a href={print({ view: "step", run: last.run, step: last.step, entry })}>
          {entry} of step {last.step} of {last.run}
        </a>
      ) : (
        <code>limpid explain last {entry}</code>
      )}
    </p>
  );
}
