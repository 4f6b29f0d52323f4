// A number that is a link to where it came from; every digit of it stands in its title and in data-value.
import type { Numeric } from "../documents";
import { entry as parsed, print, written } from "../address";
import { exact, general, numeric, signed } from "../numbers";
import { useStep } from "./step-context";

interface Props {
  value: Numeric;
  /** The entry it is, as NAME[i, j]; a plain number without one. */
  entry?: string | undefined;
  digits?: number;
  text?: string;
}

export function Value({ value, entry, digits = 6, text }: Props) {
  const number = numeric(value);
  const shown = text ?? signed(general(number, digits));
  const odd = Number.isFinite(number) ? "" : " not-finite";
  if (entry === undefined)
    return (
      <span class={`number${odd}`} data-value={exact(number)} title={exact(number)}>
        {shown}
      </span>
    );
  return (
    <EntryLink entry={entry} class={`number${odd}`} title={`${entry} = ${exact(number)}`} value={exact(number)}>
      {shown}
    </EntryLink>
  );
}

interface LinkProps {
  entry: string;
  class?: string;
  title?: string;
  value?: string;
  children: preact.ComponentChildren;
}

/** A link to an entry of the step on show. */
export function EntryLink({ entry, children, value, ...rest }: LinkProps) {
  const { run, step } = useStep();
  const href = print({ view: "step", run, step, entry: written(parsed(entry)) });
  return (
    <a href={href} data-value={value} data-entry={written(parsed(entry))} {...rest}>
      {children}
    </a>
  );
}
