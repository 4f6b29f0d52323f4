// Where the same happens in a recorded step: the one that was opened last, or the one that comes with limpid.
import { print } from "../address";
import { opened } from "../opened";

export function InYourStep({ entry }: { entry: string }) {
  const last = opened.value;
  if (last === null || last.step === null)
    return (
      <p>
        In a recorded step: <code>limpid explain --worked {entry}</code>
      </p>
    );
  return (
    <p>
      In a step of yours:{" "}
      <a href={print({ view: "step", run: last.run, step: last.step, entry })}>
        {entry} of step {last.step} of {last.run}
      </a>
    </p>
  );
}
