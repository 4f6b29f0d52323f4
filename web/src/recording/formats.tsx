// What other formats of some modules would do to the loss: foretold and tried by the server; each module by itself.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";

import type { AgainDocument, FormatsDocument, ModuleDocument, PredictedDocument, RecordingDocument } from "../documents";
import { general, numeric } from "../numbers";
import { Awaited, Choice, Field } from "../parts/form";
import { useAnswer } from "../service";
import type { Api } from "../source/source";
import { ByModule } from "./by-module";
import { plus } from "./recording";

/** Patterns of modules, and their formats. */
export type Asked = Record<string, string>;

const SHORT: Record<string, string> = { float8_e4m3fn: "fp8", float8_e5m2: "e5m2", bfloat16: "bf16", float16: "fp16" };

export function short(format: string): string {
  return SHORT[format] ?? format;
}

export function Formats({ api, name, recording }: { api: Api; name: string; recording: RecordingDocument }) {
  const path = `api/recordings/${encodeURIComponent(name)}`;
  const again = useAnswer<AgainDocument>(api, `${path}/again`);
  return (
    <section class="formats">
      <h2>What if: other formats</h2>
      <Awaited answer={again.value}>{(can) => (can.why ? <p class="quiet">Not to be tried here: {can.why}.</p> : <Ask api={api} path={`${path}/formats`} can={can} recording={recording} />)}</Awaited>
    </section>
  );
}

function Ask({ api, path, can, recording }: { api: Api; path: string; can: AgainDocument; recording: RecordingDocument }) {
  const asked = useSignal<Asked>({});
  const sent = useSignal<Asked | null>(null);
  const isByModule = useSignal(false);
  const pattern = useSignal("");
  const format = useSignal(can.formats[0] ?? "fp8");
  const modules = useMemo(() => paths(recording.modules), [recording]);
  const add = (module: string, form: string) => (asked.value = { ...asked.value, [module]: form });
  const made = (what: Asked | null) => [what && `${path}?${new URLSearchParams({ asked: JSON.stringify(what) })}`, undefined, { path, body: { asked: what } }] as const;
  const found = useAnswer<FormatsDocument>(api, ...made(sent.value));
  const table = useAnswer<FormatsDocument>(api, ...made(isByModule.value ? {} : null));
  const entries = Object.entries(asked.value);
  return (
    <>
      <p>
        Choose modules and a format: the forward pass of {can.model} ({can.precision}) is taken again with their operations in it. In bf16 and fp16 they compute in the format; in fp8 and e5m2 the factors of products are rounded.
      </p>
      <form
        class="changes"
        onSubmit={(event) => {
          event.preventDefault();
          if (pattern.value.trim()) add(pattern.value.trim(), format.value);
        }}
      >
        <div class="line-up">
          <Field label="modules" hint="a path, the end of one, or * in the place of a part" placeholder="layers.0.*" value={pattern.value} onValue={(value) => (pattern.value = value)} choices={modules} />
          <Choice label="format" value={format.value} choices={[...can.formats]} onValue={(value) => (format.value = value)} />
          <button type="submit" disabled={!pattern.value.trim()}>
            add
          </button>
        </div>
      </form>
      {entries.length > 0 && (
        <>
          <ul class="changed">
            {entries.map(([module, form]) => (
              <li key={module}>
                <code>{module}</code> in {short(form)}{" "}
                <button type="button" aria-label={`take back: ${module}`} onClick={() => (asked.value = Object.fromEntries(entries.filter(([other]) => other !== module)))}>
                  take back
                </button>
              </li>
            ))}
          </ul>
          <button type="button" onClick={() => (sent.value = asked.value)}>
            try {entries.length === 1 ? "it" : "them at once"}
          </button>
        </>
      )}
      <div aria-live="polite">{sent.value && <Awaited answer={found.value}>{(tried) => <Tried found={tried} />}</Awaited>}</div>
      {isByModule.value ? (
        <Awaited answer={table.value}>{({ rows, loss }) => <ByModule rows={rows} loss={loss} asked={asked.value} add={add} />}</Awaited>
      ) : (
        <p>
          <button type="button" onClick={() => (isByModule.value = true)}>
            each module by itself
          </button>{" "}
          <span class="quiet">in every format; as many forward passes as there are modules</span>
        </p>
      )}
    </>
  );
}

function Tried({ found }: { found: FormatsDocument }) {
  const { predicted, tried, holds, loss, parts, asked } = found;
  if (!predicted || tried === null) return null;
  const largest = [...parts].sort((a, b) => Math.abs(numeric(b.adds)) - Math.abs(numeric(a.adds)));
  return (
    <>
      <h3>
        {Object.entries(asked)
          .map(([module, form]) => `${module} in ${short(form)}`)
          .join(", ")}
      </h3>
      <dl class="headlines">
        <div>
          <dt>foretold</dt>
          <dd class="number">{foretold(predicted)}</dd>
        </div>
        <div>
          <dt>tried</dt>
          <dd class={`number ${holds ? "good" : "bad"}`}>
            {holds ? "✓" : "✗ beyond that:"} {plus(numeric(tried))}
          </dd>
        </div>
        <div>
          <dt>loss</dt>
          <dd class="number">
            {general(numeric(loss) + numeric(tried), 7)} <span class="quiet">in the place of {general(numeric(loss), 7)}</span>
          </dd>
        </div>
        <div>
          <dt>operations</dt>
          <dd class="number">{predicted.calls.toLocaleString("en")}</dd>
        </div>
      </dl>
      {largest.length > 1 && (
        <>
          <p class="quiet">What each adds, all of them changed, to first order:</p>
          <div class="scroll" tabIndex={0} role="region" aria-label="what each part adds">
            <table class="by-module">
              <tbody>
                {largest.map((part) => (
                  <tr key={`${part.module} ${part.format}`}>
                    <th scope="row">{part.module}</th>
                    <td>{short(part.format)}</td>
                    <td class="number">{plus(numeric(part.adds))}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </>
  );
}

/** A change, or the size that it does not exceed. */
export function foretold(told: PredictedDocument): string {
  if (!told.is_changed) return "nothing is rounded";
  return told.is_value ? plus(numeric(told.change)) : `≤ ${general(numeric(told.at_most), 2)}`;
}

/** Every module's path; what stands in none is the loss's. */
function paths(module: ModuleDocument): string[] {
  return module.modules.flatMap((part) => (part.path === "(update)" ? [] : [part.path.startsWith("(loss") ? "(loss)" : part.path, ...paths(part)]));
}
