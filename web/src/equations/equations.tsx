// The catalogue of every equation.
import { useSignal } from "@preact/signals";
import type { EquationDocument } from "../documents";
import type { Address } from "../address";
import type { ViewProps } from "../page";
import { Equation } from "../parts/equation";
import { useLoaded } from "../parts/loaded";

export function Equations({ source }: ViewProps<Extract<Address, { view: "equations" }>>) {
  const page = useLoaded(() => source.equations(), [source]);
  const words = useSignal("");
  if (page === null) return <p class="quiet">Reading the equations…</p>;
  const shown = page.equations.filter((one) => has(one, words.value));
  return (
    <>
      <h1>Equations</h1>
      <label class="search">
        <span>Search names, purposes, branches and sources</span>
        <input type="search" value={words} onInput={(event) => (words.value = event.currentTarget.value)} />
      </label>
      <p class="quiet" aria-live="polite">
        {shown.length} of {page.equations.length}
      </p>
      {shown.map((one) => (
        <section key={`${one.file} ${one.name}`} class="equation">
          <h2>
            {one.name} <span class="branch">{one.branch}</span>
          </h2>
          <p>{one.purpose}</p>
          <Equation latex={one.equation} mathml={page.mathml} />
          {one.adjoint.map((line) => line && <Equation key={line} latex={line} mathml={page.mathml} frame="backward" />)}
          <p class="quiet">{one.source}</p>
        </section>
      ))}
    </>
  );
}

function has(one: EquationDocument, words: string): boolean {
  const text = `${one.name} ${one.purpose} ${one.branch} ${one.source}`.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
