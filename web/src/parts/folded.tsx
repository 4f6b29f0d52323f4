// What is folded in, and made when it is opened: a step has thousands of numbers that few look at.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";

interface Props {
  class: string;
  summary: ComponentChildren;
  children: () => ComponentChildren;
}

export function Folded({ class: kind, summary, children }: Props) {
  const opened = useSignal(false);
  return (
    <details class={kind} onToggle={(event) => (opened.value ||= event.currentTarget.open)}>
      <summary>{summary}</summary>
      {opened.value && children()}
    </details>
  );
}
