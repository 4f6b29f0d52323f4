// What the step is: its verdict, its loss, its text.
import type { StepView } from "../documents";
import { entry as parsed } from "../address";
import { general, numeric } from "../numbers";
import { useStep } from "../parts/step-context";
import { printable, visible } from "../parts/text";
import { EntryLink, Value } from "../parts/value";

export function Head() {
  const { view, row } = useStep();
  const { step } = view;
  const model = step.config["model"] as { num_layers?: number; d_model?: number; num_heads?: number } | undefined;
  const total = step.parameters.reduce((sum, one) => sum + one.shape.reduce((a, b) => a * b, 1), 0);
  return (
    <header class="step-head">
      <h1>
        Step {step.step.toLocaleString("en")} of {printable(step.run)}
      </h1>
      <p class="quiet">
        {step.loss.positions.toLocaleString("en")} tokens, {step.loss.labels.toLocaleString("en")} labels · {model?.num_layers}{" "}
        {model?.num_layers === 1 ? "layer" : "layers"} × {model?.d_model} · {total.toLocaleString("en")} parameters moved ·{" "}
        {step.precision["compute"]} with {step.precision["parameters"]} parameters · redone in float64
      </p>
      <VerdictLine view={view} />
      {view.tokens.length > 1 && (
        <label>
          row of the batch{" "}
          <select value={row.value} onChange={(event) => (row.value = Number(event.currentTarget.value))}>
            {view.tokens.map((text, at) => (
              <option key={at} value={at}>
                {at}: {visible(text.slice(0, 8).join(""))}…
              </option>
            ))}
          </select>
        </label>
      )}
      <Surprise />
    </header>
  );
}

function VerdictLine({ view: { step } }: { view: StepView }) {
  const { verdict, loss } = step;
  const wrong = verdict.first_disagreement;
  return (
    <p class={`verdict ${verdict.agrees ? "holds" : "fails"}`}>
      <strong>
        {verdict.agrees ? "✓" : "✗"} {verdict.within_bounds.toLocaleString("en")} of {verdict.checks.toLocaleString("en")} comparisons
        within bounds
      </strong>
      {verdict.origin && <> · {verdict.origin.explanation}</>}
      {wrong && (
        <>
          {" "}
          · first beyond: <code>{wrong.name}</code>
        </>
      )}{" "}
      · nearest to its bound: <Nearest name={verdict.worst.name} index={verdict.worst.index} /> at {general(numeric(verdict.worst.worst), 2)} of
      it · loss <Value value={loss.value} entry="loss" digits={7} />
    </p>
  );
}

function Nearest({ name, index }: { name: string; index: number[] }) {
  const { view } = useStep();
  const text = index.length ? `${name}[${index.join(",")}]` : name;
  const inner = parsed(text).name.replace(/^(?:grad|m|v|update)\((.+)\)$/, "$1");
  return inner in view.arrays ? <EntryLink entry={text}>{text}</EntryLink> : <code>{text}</code>;
}

const SHOWN = 256;

/** The text, each token marked by how much it surprised. */
function Surprise() {
  const { view, row } = useStep();
  const labels = view.step.loss.rows[row.value] ?? [];
  const first = view.tokens[row.value]?.[0] ?? "";
  const largest = Math.max(1e-9, ...labels.map(([, nats]) => (nats === null ? 0 : numeric(nats))));
  if (!labels.length) return null;
  return (
    <p class="surprise" aria-label="the text; coloured more strongly where the model was more surprised">
      <span class="token">{visible(first)}</span>
      {labels.slice(0, SHOWN).map(([text, nats], at) => (
        <span
          key={at}
          class="token"
          style={nats === null ? {} : { "--nats": String(Math.round((100 * numeric(nats)) / largest)) }}
          title={nats === null ? "no label" : `${general(numeric(nats), 4)} nats, probability ${general(Math.exp(-numeric(nats)), 3)}`}
        >
          {visible(text)}
        </span>
      ))}
      {labels.length > SHOWN && <span class="quiet"> … {labels.length - SHOWN} more</span>}
    </p>
  );
}
