// One equation, as the MathML that Python made of its LaTeX.

interface Props {
  latex: string;
  mathml: Record<string, string>;
  frame?: "forward" | "backward" | "update";
}

/** The only place that sets HTML: the MathML of our own equations, never text of a run. */
export function Equation({ latex, mathml, frame }: Props) {
  const made = mathml[latex];
  if (made === undefined) return <code class="math">{latex}</code>;
  return <div class={`math ${frame ?? ""}`} tabIndex={0} role="group" aria-label="equation" dangerouslySetInnerHTML={{ __html: made }} />;
}
