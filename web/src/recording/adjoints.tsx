// Backward passes by hand, each held against its forward pass along random directions.
import type { AdjointDocument, RecordingDocument } from "../documents";

/** Rows that are shown at once. */
const SHOWN = 12;
const MARKS: Record<string, [string, string]> = {
  holds: ["holds", "✓ the adjoint"],
  "not the adjoint": ["fails", "✗ not the adjoint"],
  surrogate: ["unchecked", "surrogate"],
  "not checked": ["unchecked", "not checked"],
};
const ORDER = ["not the adjoint", "surrogate", "not checked", "holds"];

export function Adjoints({ recording }: { recording: RecordingDocument }) {
  const all = [...recording.adjoints].sort((a, b) => ORDER.indexOf(a.verdict) - ORDER.indexOf(b.verdict));
  if (!all.length) return null;
  return (
    <section class="adjoints">
      <h2>Backward passes by hand</h2>
      <p class="quiet">Each held against its forward pass: ⟨ȳ, J v⟩ = ⟨x̄, v⟩ along random directions v.</p>
      <div class="scroll" tabIndex={0} role="region" aria-label="backward passes by hand">
        <table>
          <thead>
            <tr>
              <th>function</th>
              <th>module</th>
              <th>verdict</th>
              <th>said</th>
            </tr>
          </thead>
          <tbody>
            {all.slice(0, SHOWN).map((one) => (
              <Row key={one.number} one={one} />
            ))}
          </tbody>
        </table>
      </div>
      {all.length > SHOWN && <p class="quiet">and {all.length - SHOWN} more</p>}
    </section>
  );
}

function Row({ one }: { one: AdjointDocument }) {
  const [kind, said] = MARKS[one.verdict] ?? ["unchecked", one.verdict];
  return (
    <tr>
      <th scope="row">
        <code>{one.function}</code> <span class="quiet">{one.source}</span>
      </th>
      <td>{one.module || "outside of modules"}</td>
      <td>
        <span class={`mark ${kind}`}>{said}</span>
      </td>
      <td>{one.verdict === "holds" ? "" : one.said}</td>
    </tr>
  );
}
