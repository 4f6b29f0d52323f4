// Every option of a run, or what differs between several.
import { useSignal } from "@preact/signals";

import { Field } from "../parts/form";
import { runColour } from "./lines";
import type { Live } from "./live";

export function Configuration({ runs }: { runs: Live[] }) {
  const words = useSignal("");
  const options = runs.map((run) => new Map(Object.entries(run.overview.config).flatMap(([section, held]) => Object.entries(held).map(([name, value]) => [`${section}.${name}`, said(value)] as const))));
  const names = [...new Set(options.flatMap((one) => [...one.keys()]))];
  const several = runs.length > 1;
  const differing = names.filter((name) => !several || new Set(options.map((one) => one.get(name))).size > 1);
  const shown = differing.filter((name) => name.includes(words.value.trim().toLowerCase()));
  return (
    <details class="configuration" open={several}>
      <summary>
        <h2>{several ? `${differing.length} options differ` : "Configuration"}</h2>
      </summary>
      {!several && <Field label="Filter options" kind="search" value={words.value} onValue={(value) => (words.value = value)} />}
      <div class="scroll" tabIndex={0} role="region" aria-label="options">
        <table>
          {several && (
            <thead>
              <tr>
                <th scope="col">option</th>
                {runs.map((run, at) => (
                  <th key={run.overview.row.name} scope="col" style={{ "--swatch": runColour(at) }}>
                    <i class="swatch" /> {run.overview.row.name}
                  </th>
                ))}
              </tr>
            </thead>
          )}
          <tbody>
            {shown.map((name) => (
              <tr key={name}>
                <th scope="row">
                  <code>{name}</code>
                </th>
                {options.map((one, at) => (
                  <td key={at}>
                    <code>{one.get(name) ?? "–"}</code>
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

function said(value: unknown): string {
  return typeof value === "string" ? value : value === null ? "none" : JSON.stringify(value);
}
