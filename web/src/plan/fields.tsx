// The planner's options as fields: the everyday ones, and all the others behind a fold.
import { Choice, Field } from "../parts/form";
import type { Asked } from "./asked";
import type { PlanForm, PlanOption } from "./documents";

const EVERYDAY = ["device", "devices", "tokens", "context_length", "batch_size", "precision", "zero", "tensor", "pipeline", "recompute"];

interface Props {
  form: PlanForm;
  asked: Asked;
  onAsked: (asked: Asked) => void;
}

export function PlanFields({ form, asked, onAsked }: Props) {
  const put = (name: string, value: string) => onAsked({ ...asked, [name]: value });
  const rest = form.options.filter(({ name }) => !EVERYDAY.includes(name));
  const first = EVERYDAY.flatMap((name) => form.options.find((option) => option.name === name) ?? []);
  const field = (option: PlanOption) => <One key={option.name} option={option} form={form} value={asked[option.name] ?? ""} onValue={(value) => put(option.name, value)} />;
  return (
    <form class="fields" onSubmit={(event) => event.preventDefault()}>
      <div class="grid">
        <Field label="model" hint="a published name, a run; empty to ask only for the best size" value={asked.what ?? ""} choices={form.names} placeholder="none" onValue={(value) => put("what", value)} />
        {first.map(field)}
      </div>
      <details open={rest.some(({ name }) => asked[name])}>
        <summary>all options</summary>
        <div class="grid">
          {rest.map(field)}
          <Field label="compute" hint="FLOPs, without a model: the best size and number of tokens" value={asked.compute ?? ""} placeholder="1e21" onValue={(value) => put("compute", value)} />
          <Field label="params" hint="parameters, without a model: the best number of tokens" value={asked.params ?? ""} placeholder="70B" onValue={(value) => put("params", value)} />
        </div>
      </details>
    </form>
  );
}

function One({ option, form, value, onValue }: { option: PlanOption; form: PlanForm; value: string; onValue: (value: string) => void }) {
  const { name, about, kind, choices } = option;
  const label = name.replaceAll("_", " ");
  const given = option.default === null ? "" : String(option.default);
  if (kind === "choice") {
    return <Choice label={label} hint={about} value={value || given} choices={given ? choices : [["", "–"], ...choices]} onValue={(chosen) => onValue(chosen === given ? "" : chosen)} />;
  }
  const known = name === "device" ? form.devices : choices.length ? choices : undefined;
  return <Field label={label} hint={about} value={value} placeholder={given || "–"} choices={known} onValue={onValue} />;
}
