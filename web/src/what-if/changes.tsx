// The changes that are asked for, and the fields that add one.
import { useSignal } from "@preact/signals";

import { Choice, Field } from "../parts/form";
import { type Change, said } from "./documents";

const KINDS: [Change["kind"], string][] = [
  ["weight", "a weight"], ["token", "a token"], ["target", "a target"], ["visible", "the mask"], ["rate", "the learning rate"], ["precision", "the precision"],
];
const FIRST: Record<string, string> = { entry: "blocks.0.mlp.up.weight[0, 0]", value: "0.1", row: "0", position: "0", token: "0", query: "1", key: "0", see: "no", rate: "0.001", format: "bf16" };

interface Props {
  changes: Change[];
  onChanges: (changes: Change[]) => void;
}

export function Changes({ changes, onChanges }: Props) {
  const kind = useSignal<Change["kind"]>("weight");
  const words = useSignal(FIRST);
  const field = (name: string, label = name) => <Field key={name} label={label} value={words.value[name] ?? ""} onValue={(value) => (words.value = { ...words.value, [name]: value })} />;
  const change = made(kind.value, words.value);
  return (
    <form
      class="changes"
      onSubmit={(event) => {
        event.preventDefault();
        if (change) onChanges([...changes, change]);
      }}
    >
      <div class="line-up">
        <Choice label="change" value={kind.value} choices={KINDS} onValue={(value) => (kind.value = value as Change["kind"])} />
        {kind.value === "weight" && [field("entry", "entry"), field("value", "its value")]}
        {(kind.value === "token" || kind.value === "target") && [field("row"), field("position"), field("token", "id of the token")]}
        {kind.value === "visible" && [
          field("query", "query at"),
          field("key", "key at"),
          <Choice key="see" label="sees it" value={words.value.see ?? "no"} choices={["no", "yes"]} onValue={(see) => (words.value = { ...words.value, see })} />,
        ]}
        {kind.value === "rate" && field("rate", "learning rate")}
        {kind.value === "precision" && <Choice label="format" value={words.value.format ?? "bf16"} choices={["bf16", "fp16", "fp32", "fp64"]} onValue={(format) => (words.value = { ...words.value, format })} />}
        <button type="submit" disabled={!change}>
          change it
        </button>
      </div>
      {changes.length > 0 && (
        <ul class="changed">
          {changes.map((one, at) => (
            <li key={at}>
              <code>{said(one)}</code>
              <button type="button" aria-label={`take back: ${said(one)}`} onClick={() => onChanges(changes.filter((_, place) => place !== at))}>
                take back
              </button>
            </li>
          ))}
        </ul>
      )}
    </form>
  );
}

/** The change that the words of the fields say; null where one of them is no number. */
export function made(kind: Change["kind"], words: Record<string, string>): Change | null {
  const number = (name: string) => (words[name]?.trim() ? Number(words[name]) : Number.NaN);
  const whole = (...names: string[]) => names.every((name) => Number.isInteger(number(name)) && number(name) >= 0);
  switch (kind) {
    case "weight":
      return /^[\w.]+\s*\[[\d\s,]+\]$/.test(words.entry ?? "") && Number.isFinite(number("value")) ? { kind, entry: words.entry ?? "", value: number("value") } : null;
    case "token":
    case "target":
      return whole("row", "position", "token") ? { kind, row: number("row"), position: number("position"), token: number("token") } : null;
    case "rate":
      return Number.isFinite(number("rate")) ? { kind, value: number("rate") } : null;
    case "visible":
      return whole("query", "key") ? { kind, query: number("query"), key: number("key"), see: words.see === "yes" } : null;
    case "precision":
      return { kind, format: words.format ?? "bf16" };
  }
}
