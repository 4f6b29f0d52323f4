// The logit lens: what would be predicted if the residual stream ended after each block.
import { useSignal } from "@preact/signals";
import type { LensCell, LensToken, LensView } from "../documents";
import { general, numeric } from "../numbers";
import { colour, css, DARK_PALETTE, inkOn, LIGHT_PALETTE, palette } from "../parts/colours";
import { Segments } from "../parts/form";
import { useLoaded } from "../parts/loaded";
import { Matrix } from "../parts/matrix";
import { Save } from "../parts/save";
import { useWhileNear } from "../parts/seen";
import { go, isWhole, useStep } from "../parts/step-context";
import { visible } from "../parts/text";
import { EntryLink, Value } from "../parts/value";
import { useWidth } from "../parts/width";
import { figure, type Measure, MEASURES, strongest, tone } from "./lens-measure";
import { lensSvg } from "./lens-picture";

const COLUMN = 70;

export function Lens() {
  const shown = useStep();
  const { view, source } = shown;
  const [room, box] = useWidth<HTMLElement>(200, 1400);
  const row = useWhileNear(shown.row.value, box);
  const columns = Math.max(2, Math.floor((room - 84) / COLUMN));
  const first = useSignal(0);
  const measure = useSignal<Measure>("target");
  const chosen = useSignal<{ layer: number; column: number } | null>(null);
  const found = useLoaded(() => source.lens(row, first.value, columns), [source, row, first.value, columns]);
  if (view.arrays["logits"]?.shape.length !== 3 || !view.tokens.length) return null;
  const count = found?.targets.length ?? columns;
  const move = (to: number) => {
    first.value = Math.max(0, to);
    chosen.value = null;
  };
  const text = view.tokens[row] ?? [];
  const at = chosen.value;
  const cell = at && found?.layers[at.layer]?.cells[at.column];
  return (
    <section class="lens" aria-label="logit lens" ref={box}>
      <h3>Logit lens</h3>
      <p class="quiet">
        What would come next if the residual stream ended here: read out by the last norm and the output matrix after the embedding and after every
        block.
      </p>
      <div class="line-up">
        <span>
          painted by{" "}
          <Segments label="painted by" value={measure.value} choices={MEASURES} onValue={(value) => (measure.value = value)} />
        </span>
        {found && found.positions > count && (
          <span>
            <button type="button" disabled={first.value === 0} onClick={() => move(first.value - count)} aria-label="positions before">
              ←
            </button>{" "}
            positions {found.first} to {found.first + count - 1} of {found.positions}{" "}
            <button type="button" disabled={found.first + count >= found.positions} onClick={() => move(found.first + count)} aria-label="positions after">
              →
            </button>
          </span>
        )}
        {found && <Save name="logit lens" svg={() => lensSvg(found, text, measure.value)} />}
      </div>
      {found ? (
        <Table found={found} text={text} measure={measure.value} chosen={at} onChosen={(now) => (chosen.value = now)} />
      ) : (
        <p class="quiet loading">reading the stream out …</p>
      )}
      {found && cell && at && <Chosen found={found} cell={cell} layer={at.layer} position={found.first + at.column} text={text} />}
    </section>
  );
}

interface TableProps {
  found: LensView;
  text: string[];
  measure: Measure;
  chosen: { layer: number; column: number } | null;
  onChosen: (cell: { layer: number; column: number } | null) => void;
}

function Table({ found, text, measure, chosen, onChosen }: TableProps) {
  const most = strongest(found, measure);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="layers down, positions across">
      <table class="lens-cells">
        <thead>
          <tr>
            <td />
            {found.targets.map((_, column) => (
              <th key={column} scope="col">
                <span class="token">{visible(text[found.first + column] ?? "")}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {found.layers.map(({ name, title, cells }, layer) => (
            <tr key={name}>
              <th scope="row">{title}</th>
              {cells.map((cell, column) => {
                const pressed = chosen?.layer === layer && chosen.column === column;
                const [top] = cell.likeliest;
                return (
                  <td key={column}>
                    <button
                      type="button"
                      class={`lens-cell${tone(cell, measure, most) === null ? " unlabelled" : ""}`}
                      style={painted(tone(cell, measure, most))}
                      aria-pressed={pressed}
                      onClick={() => onChosen(pressed ? null : { layer, column })}
                    >
                      <span class="unseen">
                        {title}, position {found.first + column}:
                      </span>
                      <span>{visible(top?.text ?? "")}</span>
                      <span class="share">{figure(cell, measure)}</span>
                    </button>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th scope="row">comes</th>
            {found.targets.map((target, column) => (
              <td key={column}>{target === null ? <span class="quiet">–</span> : <span class="token">{visible(target)}</span>}</td>
            ))}
          </tr>
        </tfoot>
      </table>
      <p class="legend" aria-hidden="true">
        0 <span class="bar" style={{ background: `linear-gradient(to right, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map((at) => css(colour(at, 1, palette()))).join(",")})` }} /> {general(most, 3)} {measure === "kl" ? "nats" : ""}
      </p>
    </div>
  );
}

interface ChosenProps {
  found: LensView;
  cell: LensCell;
  layer: number;
  position: number;
  text: string[];
}

/** One cell: its likeliest tokens, the one that comes, and the residual stream that they were read out of. */
function Chosen({ found, cell, layer, position, text }: ChosenProps) {
  const shown = useStep();
  const { name, title } = found.layers[layer]!;
  const isLast = layer === found.layers.length - 1;
  const target = found.targets[position - found.first] ?? null;
  return (
    <div class="lens-chosen" aria-live="polite">
      <h4>
        {title}, after <span class="token">{visible(text[position] ?? "")}</span> at {position}
      </h4>
      <div class="sides">
        <table class="bars">
          <thead>
            <tr>
              <th>would come</th>
              <th class="number">probability</th>
              <th aria-hidden="true"></th>
            </tr>
          </thead>
          <tbody>
            {cell.likeliest.map((token) => (
              <Token key={token.id} token={token} logit={isLast ? `logits[${found.row},${position},${token.id}]` : null} comes={token.text === target} />
            ))}
          </tbody>
        </table>
        <p class="quiet">
          {target !== null && cell.target !== null && (
            <>
              <span class="token">{visible(target)}</span> comes: probability <Value value={cell.target} digits={4} />, rank {cell.rank} ·{" "}
            </>
          )}
          <Value value={cell.kl} digits={4} /> nats from the model’s own prediction
        </p>
      </div>
      {name in shown.view.arrays && isWhole(shown.view, name) && <Stream name={name} row={found.row} position={position} />}
    </div>
  );
}

function Token({ token, logit, comes }: { token: LensToken; logit: string | null; comes: boolean }) {
  const text = visible(token.text) || `<${token.id}>`;
  return (
    <tr>
      <th scope="row">
        {logit ? <EntryLink entry={logit}>{text}</EntryLink> : <span>{text}</span>}
        {comes && <span class="quiet"> ✓</span>}
      </th>
      <td class="number">
        <Value value={token.probability} digits={4} />
      </td>
      <td class="bar-cell" aria-hidden="true">
        <span class="bar-track plain">
          <span class="bar-positive" style={{ width: `${100 * numeric(token.probability)}%`, left: 0 }} />
        </span>
      </td>
    </tr>
  );
}

/** The stream there, entry by entry: a click opens one. */
function Stream({ name, row, position }: { name: string; row: number; position: number }) {
  const shown = useStep();
  const entry = `${name}[${row},${position}]`;
  const slice = useLoaded(() => shown.source.slice(entry, "value"), [shown.source, entry]);
  if (!slice) return <p class="quiet loading">reading {entry} …</p>;
  return (
    <Matrix
      title={entry}
      caption={`the residual stream there, ${entry}: a click opens an entry`}
      rows={1}
      columns={slice.data.length}
      data={slice.data}
      rowAxis=""
      columnAxis="d_model"
      room={640}
      frame="forward"
      named={(_, column) => `${name}[${row},${position},${column}]`}
      onChoose={(_, column) => go(shown, { name, index: [row, position, column] })}
    />
  );
}

function painted(tone: number | null): Record<string, string> {
  if (tone === null) return {};
  const [light, dark] = [LIGHT_PALETTE, DARK_PALETTE].map((one) => colour(tone, 1, one)) as [[number, number, number], [number, number, number]];
  return { "--light": css(light), "--light-ink": inkOn(light), "--dark": css(dark), "--dark-ink": inkOn(dark) };
}
