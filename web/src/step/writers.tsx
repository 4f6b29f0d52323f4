// Who wrote the logit: the residual stream is a sum of what each part wrote, and the last norm, at the scale that it has
// here, is linear in it. So the logit is a sum over the parts, exactly.
import { useComputed, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { QuantityDocument, StepDocument } from "../documents";
import { entry as parsed } from "../address";
import { general, signed } from "../numbers";
import { useLoaded } from "../parts/loaded";
import { useWhileNear } from "../parts/seen";
import { isWhole, useStep, type Shown } from "../parts/step-context";
import { visible } from "../parts/text";
import { EntryLink, Value } from "../parts/value";
import type { StepSource } from "../source/source";

interface Written {
  name: string;
  value: number;
}

/** The parts that a stream is the sum of, back through every addition. */
export function parts(step: StepDocument, name: string): string[] {
  const made = step.quantities.find((one) => one.name === name);
  return made?.operation === "Add" ? made.inputs.flatMap((input) => parts(step, input)) : [name];
}

export function Writers() {
  const shown = useStep();
  const { view, source } = shown;
  const box = useRef<HTMLElement>(null);
  const batch = useWhileNear(shown.row.value, box);
  const logits = view.step.quantities.find((one) => one.name === "logits");
  const stands = logits ? view.arrays["logits"]?.shape : undefined;
  const last = (view.tokens[batch]?.length ?? 1) - 1;
  const onShow = useComputed(() => {
    const entry = shown.entry.value;
    return entry && parsed(entry.name).name === "logits" && entry.index.length === 3 ? entry.index.join() : "";
  }).value;
  const asked = onShow ? onShow.split(",").map(Number) : null;
  const position = useSignal(last);
  const token = useSignal<number | null>(null);
  const at = [batch, asked?.[1] ?? position.value];
  const row = useLoaded(async () => (stands?.length === 3 ? source.slice(`logits[${at}]`, "value") : null), [source, `${at}`]);
  const chosen = asked?.[2] ?? token.value ?? (row ? largest(row.data) : null);
  const found = useLoaded(
    async () => (logits && chosen !== null ? written(source, view.step, logits, [...at, chosen]) : null),
    [source, `${at}`, chosen],
  );
  if (!logits || stands?.length !== 3 || !isWhole(view, "logits") || !isWhole(view, logits.inputs[0] ?? "")) return null;
  const size = found ? Math.max(...found.map((one) => Math.abs(one.value))) : 1;
  return (
    <section class="writers" aria-label="who wrote the logit" ref={box}>
      <h3>Who wrote the logit</h3>
      <Choice shown={shown} batch={batch} position={position} token={token} vocab={stands[2] ?? 1} at={at[1] ?? 0} chosen={chosen} fixed={asked !== null} />
      {found && chosen !== null ? (
        <table class="bars">
          <thead>
            <tr>
              <th>part</th>
              <th class="number">writes</th>
              <th aria-hidden="true"></th>
            </tr>
          </thead>
          <tbody>
            {found.map((one) => (
              <tr key={one.name}>
                <th scope="row">
                  <code>{one.name}</code>
                </th>
                <td class="number">
                  <Value value={one.value} />
                </td>
                <td class="bar-cell" aria-hidden="true">
                  <Bar share={one.value / size} />
                </td>
              </tr>
            ))}
            <tr class="sum">
              <th scope="row">
                <EntryLink entry={`logits[${at},${chosen}]`}>logit</EntryLink>
              </th>
              <td class="number">
                <Value value={found.reduce((sum, one) => sum + one.value, 0)} />
              </td>
              <td class="quiet">engine {row ? signed(general(Number(row.data[chosen]))) : ""}</td>
            </tr>
          </tbody>
        </table>
      ) : (
        <p class="quiet loading">adding up what each part wrote …</p>
      )}
    </section>
  );
}

interface ChoiceProps {
  shown: Shown;
  batch: number;
  position: { value: number };
  token: { value: number | null };
  vocab: number;
  at: number;
  chosen: number | null;
  fixed: boolean;
}

function Choice({ shown: { view }, batch, position, token, vocab, at, chosen, fixed }: ChoiceProps) {
  const text = view.tokens[batch] ?? [];
  if (fixed)
    return (
      <p>
        of {name(view.words, chosen ?? 0)} after {visible(text[at] ?? "")}, the entry on show
      </p>
    );
  return (
    <p class="choice">
      <label>
        after{" "}
        <select value={at} onChange={(event) => (position.value = Number(event.currentTarget.value))}>
          {text.map((word, place) => (
            <option key={place} value={place}>
              {place}: {visible(word)}
            </option>
          ))}
        </select>
      </label>{" "}
      <label>
        token{" "}
        <input
          type="number"
          min={0}
          max={vocab - 1}
          value={chosen ?? 0}
          onChange={(event) => (token.value = Math.max(0, Math.min(vocab - 1, Number(event.currentTarget.value))))}
        />
      </label>{" "}
      <span class="quiet">{name(view.words, chosen ?? 0)}</span>
    </p>
  );
}

function name(words: Record<string, string>, token: number): string {
  const text = words[String(token)];
  return text === undefined ? `token ${token}` : `“${visible(text)}”`;
}

/** A bar from the middle: to the right above zero. */
function Bar({ share }: { share: number }) {
  const width = Math.abs(share) * 50;
  return (
    <span class="bar-track">
      <span class={share < 0 ? "bar-negative" : "bar-positive"} style={{ width: `${width}%`, [share < 0 ? "right" : "left"]: "50%" }} />
    </span>
  );
}

/** What each part of the stream wrote to one logit, and what the norm's shift did. */
async function written(source: StepSource, step: StepDocument, logits: QuantityDocument, index: number[]): Promise<Written[]> {
  const [row = 0, position = 0, token = 0] = index;
  const [before = "", table = ""] = logits.inputs;
  const numbers = async (entry: string) => (await source.slice(entry, "value")).data;
  const norm = step.quantities.find((one) => one.name === before);
  const isNorm = norm !== undefined && /norm/i.test(norm.operation);
  const stream = isNorm ? (norm.inputs[0] ?? before) : before;
  const names = parts(step, stream);
  const centred = norm !== undefined && isNorm && !/rms/i.test(norm.operation);
  const axes = (part: string) => step.quantities.find((one) => one.name === part)?.shape.length ?? 0;
  const [weights, gain, shift, whole, ...vectors] = await Promise.all([
    numbers(`${table}[${token}]`),
    isNorm && norm.inputs[1] ? numbers(norm.inputs[1]) : null,
    isNorm && norm.inputs[2] ? numbers(norm.inputs[2]) : null,
    numbers(`${stream}[${row},${position}]`),
    ...names.map((part) => numbers(`${part}[${axes(part) > 2 ? `${row},${position}` : position}]`)),
  ]);
  const scale = isNorm ? 1 / spread(whole, centred, epsilon(step)) : 1;
  const found = vectors.map((vector, at): Written => {
    const mean = centred ? average(vector) : 0;
    return { name: names[at] ?? "", value: scale * sum(vector, (x, i) => (x - mean) * Number(gain?.[i] ?? 1) * Number(weights[i])) };
  });
  if (shift) found.push({ name: norm?.inputs[2] ?? "bias", value: sum(shift, (x, i) => x * Number(weights[i])) });
  return found;
}

function epsilon(step: StepDocument): number {
  return Number((step.config as { model?: { norm_eps?: number } }).model?.norm_eps ?? 0);
}

function spread(x: ArrayLike<number>, centred: boolean, eps: number): number {
  const mean = centred ? average(x) : 0;
  return Math.sqrt(sum(x, (one) => (one - mean) ** 2) / x.length + eps);
}

function average(x: ArrayLike<number>): number {
  return sum(x, (one) => one) / x.length;
}

function sum(x: ArrayLike<number>, of: (value: number, i: number) => number): number {
  let total = 0;
  for (let i = 0; i < x.length; i++) total += of(Number(x[i]), i);
  return total;
}

function largest(x: ArrayLike<number>): number {
  let best = 0;
  for (let i = 1; i < x.length; i++) if (Number(x[i]) > Number(x[best])) best = i;
  return best;
}

