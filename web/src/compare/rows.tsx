// Quantities by how far they are apart, each with its worst cell.
import { useSignal } from "@preact/signals";

import { digits } from "../format";
import type { Comparison, Row } from "./documents";
import { quantityOf } from "./strip";

const FEW = 12;

interface Props {
  rows: Row[];
  found: Comparison;
  bounded: boolean;
  value: (row: Row) => number;
  title: string;
}

export function Rows({ rows, found, bounded, value, title }: Props) {
  const all = useSignal(false);
  const rank = (row: Row) => (Number.isNaN(value(row)) ? Infinity : value(row));
  const sorted = [...rows].sort((a, b) => rank(b) - rank(a));
  const shown = all.value ? sorted : sorted.slice(0, FEW);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`differences: ${title}`}>
      <table class="differences">
        <caption>{title}: the furthest apart first</caption>
        <thead>
          <tr>
            <th scope="col">quantity</th>
            <th scope="col" class="number">{bounded ? "of the bound" : "of its size"}</th>
            <th scope="col">worst cell</th>
            <th scope="col" class="number">{found.a}</th>
            <th scope="col" class="number">{found.b}</th>
            <th scope="col" class="number">apart</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <tr key={`${row.kind} ${row.name}`} class={row.kind}>
              <th scope="row">
                <code>{row.name}</code>
              </th>
              <td class={`number${bounded && !(value(row) <= 1) ? " beyond" : ""}`}>{row.not_finite ? "not finite" : digits(bounded ? row.share : row.relative, 3)}</td>
              <td>
                <Worst row={row} found={found} />
              </td>
              <td class="number">{digits(row.a, 7)}</td>
              <td class="number">{digits(row.b, 7)}</td>
              <td class="number">{digits(row.largest, 3)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {sorted.length > FEW && (
        <button type="button" onClick={() => (all.value = !all.value)}>
          {all.value ? `the ${FEW} furthest apart` : `all ${sorted.length}`}
        </button>
      )}
    </div>
  );
}

function Worst({ row, found }: { row: Row; found: Comparison }) {
  const entry = `[${row.index.join(", ")}]`;
  const step = /^(.+)\/(\d+)$/.exec(found.a);
  if (!step || row.kind === "weight" || !row.index.length) return <code>{entry}</code>;
  return <a href={`#/${encodeURIComponent(step[1] ?? "")}/${step[2]}/${quantityOf(row)}[${row.index.join(",")}]`}>{entry}</a>;
}
