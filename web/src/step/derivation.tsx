// One entry, or what was passed back to it, written out: every number that is an entry of the step is a link to it.
import type { DerivationDocument, Term } from "../documents";
import { Equation } from "../parts/equation";
import { general, numeric, signed } from "../numbers";
import { printable } from "../parts/text";
import { Value, EntryLink } from "../parts/value";

interface Props {
  derivation: DerivationDocument;
  mathml: Record<string, string>;
  frame: "forward" | "backward";
}

export function Derivation({ derivation, mathml, frame }: Props) {
  const { symbols, numbers, terms, value } = derivation;
  return (
    <div class={`derivation ${frame}`}>
      {derivation.equation && <Equation latex={derivation.equation} mathml={mathml} />}
      <p class="written">{symbols}</p>
      <p class="written">
        <Linked text={numbers} terms={terms} /> = <Value value={value} digits={9} />
      </p>
      {terms.length > 0 && <Terms terms={terms} />}
    </div>
  );
}

/** The strongest contributions: factor × entry. */
function Terms({ terms }: { terms: Term[] }) {
  return (
    <table class="terms">
      <thead>
        <tr>
          <th>from</th>
          <th class="number">its number</th>
          <th class="number">× factor</th>
          <th class="number">= adds</th>
        </tr>
      </thead>
      <tbody>
        {terms.map(({ source, factor, value }) => (
          <tr key={source.address}>
            <td>
              <EntryLink entry={source.address} class="entry">
                {source.address}
              </EntryLink>{" "}
              <span class="quiet">{printable(source.note)}</span>
            </td>
            <td class="number">
              <Value value={source.value} entry={source.address} />
            </td>
            <td class="number">{factor === null ? "" : <Value value={factor} />}</td>
            <td class="number">
              <Value value={value} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const LITERAL = /(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w])/g;

/** A line of numbers; those that are an entry's are links. */
export function Linked({ text, terms }: { text: string; terms: Term[] }) {
  const left = [...terms];
  const found: preact.ComponentChildren[] = [];
  let from = 0;
  for (const match of text.matchAll(LITERAL)) {
    const is = (term: Term) => general(numeric(term.source.value)).replace("-", "") === match[0].replace("-", "");
    const of = left.findIndex(is);
    const term = of < 0 ? terms.find(is) : left.splice(of, 1)[0];
    if (!term) continue;
    found.push(
      text.slice(from, match.index),
      <Value key={match.index} value={term.source.value} entry={term.source.address} text={signed(match[0])} />,
    );
    from = match.index + match[0].length;
  }
  found.push(text.slice(from));
  return <>{found}</>;
}
