// The text as tokens: how likely each was, or how much a head attends to it.
import { percent, visible } from "../format";
import type { Token } from "./documents";

interface Props {
  tokens: Token[];
  /** The last token that was read; those behind it are kept to go back to. */
  at: number;
  /** Attention of the last token that was read; null shows probabilities. */
  weights: number[] | null;
  onToken: (place: number) => void;
}

export function Tokens({ tokens, at, weights, onToken }: Props) {
  const most = weights ? Math.max(...weights, 1e-9) : 1;
  return (
    <div class="tokens" role="group" aria-label="tokens; one of them shows what came after it">
      {tokens.map((token, place) => {
        const weight = weights?.[place];
        const share = weights ? (weight ?? 0) / most : 0;
        const said = weights && weight !== undefined ? `attention ${percent(weight)}` : token.probability == null ? "first" : `probability ${percent(token.probability)}`;
        const surprise = !weights && token.probability != null ? Math.min(1, -Math.log10(Math.max(token.probability, 1e-4)) / 4) : 0;
        return (
          <button
            key={place}
            type="button"
            class={`piece${place === at ? " here" : ""}${place > at ? " later" : ""}`}
            style={{ "--share": share.toFixed(3), "--surprise": surprise.toFixed(3) }}
            aria-label={`${place}: ${visible(token.text)}, ${said}`}
            aria-current={place === at ? "true" : undefined}
            title={`${token.id}: ${said}`}
            onClick={() => onToken(place)}
          >
            {visible(token.text)}
          </button>
        );
      })}
    </div>
  );
}
