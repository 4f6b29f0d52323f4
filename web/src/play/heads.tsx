// Where each head of each layer looks from the last token: small strips, of which one colours the text.
import { type Signal, useComputed } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { visible, percent } from "../format";
import { Save } from "../parts/save";
import type { Token } from "./documents";
import { headsSvg } from "./heads-picture";

export interface Head {
  layer: number;
  head: number;
}

interface Props {
  attention: number[][][];
  tokens: Token[];
  chosen: Signal<Head | null>;
}

export const WIDTH = 60;
export const HEIGHT = 26;

export function Heads({ attention, tokens, chosen }: Props) {
  const last = tokens[tokens.length - 1];
  return (
    <section class="heads-of" aria-labelledby="heads-of">
      <h2 id="heads-of">
        Where it looks <Save name={`attention of ${last?.text ?? ""}`} svg={() => headsSvg(attention, tokens)} />
      </h2>
      <p class="quiet">
        Attention of <code>{visible(last?.text ?? "")}</code>, from the first token at the left to itself at the right. A head colours the text.
      </p>
      <div class="scroll" tabIndex={0} role="region" aria-label="heads">
        <table>
          <thead>
            <tr>
              <td />
              {(attention[0] ?? []).map((_, head) => (
                <th key={head} scope="col">head {head}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {attention.map((heads, layer) => (
              <tr key={layer}>
                <th scope="row">block {layer}</th>
                {heads.map((weights, head) => (
                  <td key={head}>
                    <Look weights={weights} tokens={tokens} at={{ layer, head }} chosen={chosen} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

interface LookProps {
  weights: number[];
  tokens: Token[];
  at: Head;
  chosen: Signal<Head | null>;
}

/** One head: drawn again where it is chosen, and where it is no longer. */
function Look({ weights, tokens, at: { layer, head }, chosen }: LookProps) {
  const pressed = useComputed(() => chosen.value?.layer === layer && chosen.value.head === head).value;
  const strip = useMemo(() => <Strip weights={weights} />, [weights]);
  const said = useMemo(() => mostSeen(weights, tokens), [weights, tokens]);
  return (
    <button type="button" aria-pressed={pressed} aria-label={`block ${layer}, head ${head}: ${said}`} title={said} onClick={() => (chosen.value = pressed ? null : { layer, head })}>
      {strip}
    </button>
  );
}

/** A bar for each token that is looked at, the strongest as high as the strip. */
export function bars(weights: number[]): string {
  const most = Math.max(...weights, 1e-9);
  const width = WIDTH / weights.length;
  return weights.map((weight, at) => `M${(at * width).toFixed(2)} ${HEIGHT}v${(-(weight / most) * HEIGHT).toFixed(2)}h${Math.max(0.5, width - 0.4).toFixed(2)}V${HEIGHT}z`).join("");
}

function Strip({ weights }: { weights: number[] }) {
  return (
    <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} aria-hidden="true">
      <path d={bars(weights)} />
    </svg>
  );
}

function mostSeen(weights: number[], tokens: Token[]): string {
  const at = weights.indexOf(Math.max(...weights));
  return `${percent(weights[at] ?? 0)} on ${visible(tokens[at]?.text ?? "")} at ${at}`;
}
