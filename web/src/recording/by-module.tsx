// Every module by itself in each format: what it would do to the loss; a cell is chosen to be tried with others.
import type { FormatsRow, Numeric } from "../documents";
import { general, numeric } from "../numbers";
import { type Asked, foretold, short } from "./formats";

interface Props {
  rows: FormatsRow[];
  loss: Numeric;
  asked: Asked;
  add: (module: string, format: string) => void;
}

export function ByModule({ rows, loss, asked, add }: Props) {
  const formats = Object.keys(rows[0]?.formats ?? {});
  if (!rows.length) return <p class="quiet">No format rounds anything of this step.</p>;
  return (
    <>
      <h3>Each module by itself</h3>
      <p class="quiet">
        What the format adds to the loss, or does not exceed. Narrowest: that of fewest bits which moves the loss by {general(Math.abs(numeric(loss)) * 1e-3, 2)} at most, 0.1 %. A cell adds its module above.
      </p>
      <div class="scroll" tabIndex={0} role="region" aria-label="each module by itself">
        <table class="by-module">
          <thead>
            <tr>
              <th scope="col">module</th>
              {formats.map((form) => (
                <th key={form} scope="col" class="number">
                  {short(form)}
                </th>
              ))}
              <th scope="col">narrowest</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.module}>
                <th scope="row">{row.module}</th>
                {formats.map((form) => {
                  const told = row.formats[form];
                  return (
                    <td key={form} class="number">
                      {told?.is_changed ? (
                        <button type="button" class="plain" aria-pressed={asked[row.module] === short(form)} onClick={() => add(row.module, short(form))}>
                          {foretold(told)}
                        </button>
                      ) : (
                        "–"
                      )}
                    </td>
                  );
                })}
                <td class={row.narrowest ? "good" : "some"}>{row.narrowest ? short(row.narrowest) : "stays"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
