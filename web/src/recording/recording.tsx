// A step of any PyTorch model, every call of it redone: what was checked, who moved the loss, which call made what.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import type { Address } from "../address";
import type { CallDocument, GradientDocument, RecordingDocument, RegionDocument } from "../documents";
import { percent } from "../format";
import { general, numeric, signed } from "../numbers";
import type { ViewProps } from "../page";
import { Awaited } from "../parts/form";
import { apiOf, useAnswer } from "../service";
import { Adjoints } from "./adjoints";
import { Call, operation, Share, standing } from "./call";
import { Flame } from "./flame";
import { Formats } from "./formats";
import { Modules } from "./modules";

/** Calls of a list that are shown at once. */
const SHOWN = 12;

export function Recording({ source, address }: ViewProps<Extract<Address, { view: "recording" }>>) {
  const api = apiOf(source);
  const answer = useAnswer<RecordingDocument>(api, `api/recordings/${encodeURIComponent(address.name)}`);
  return (
    <Awaited answer={answer.value}>
      {(recording) => (
        <Shown recording={recording}>
          <Formats api={api} name={address.name} recording={recording} />
        </Shown>
      )}
    </Awaited>
  );
}

function Shown({ recording, children }: { recording: RecordingDocument; children: ComponentChildren }) {
  const chosen = useSignal<number | null>(recording.wrong[0] ?? recording.origins.at(-1) ?? recording.nearest);
  const choose = (number: number) => (chosen.value = number);
  const call = chosen.value === null ? undefined : recording.calls[chosen.value];
  return (
    <div class="recording">
      <h1>{recording.title}</h1>
      <Head recording={recording} />
      <Faults recording={recording} choose={choose} chosen={chosen.value} />
      <Adjoints recording={recording} />
      <div class="recording-halves">
        <section>
          <h2>Modules</h2>
          <Modules recording={recording} chosen={chosen.value} choose={choose} />
        </section>
        <aside aria-label="one call" aria-live="polite">
          {call && <Call call={call} />}
        </aside>
      </div>
      <Account recording={recording} choose={choose} />
      {children}
    </div>
  );
}

function Head({ recording }: { recording: RecordingDocument }) {
  const { verdict, checked, checked_calls, arithmetic_calls, moved_calls, drawn_calls, unchecked } = recording;
  const nearest = recording.nearest === null ? undefined : recording.calls[recording.nearest]?.worst;
  const said = {
    holds: `✓ within rounding${nearest ? `, the nearest at ${general(numeric(nearest.share), 2)} of its bound` : ""}`,
    "beyond rounding": `✗ beyond rounding in ${recording.wrong.length} ${recording.wrong.length === 1 ? "call" : "calls"}`,
    "not the adjoint": `✗ not the adjoint: ${recording.adjoints.filter((one) => one.verdict === "not the adjoint").length} of ${recording.adjoints.length} backward passes by hand`,
    "compiled otherwise": `✗ compiled otherwise: ${recording.regions.filter((one) => one.verdict === "compiled otherwise").length} of ${recording.regions.length} regions`,
    "not finite": `✗ not finite: ${recording.where}`,
    "not checked": `not checked: ${recording.where}`,
  }[verdict];
  const error = numeric(recording.error);
  return (
    <>
      <dl class="headlines">
        <div>
          <dt>of the arithmetic checked</dt>
          <dd class={checked_calls === arithmetic_calls ? "good" : "some"}>{checked_calls === arithmetic_calls ? "100 %" : percent(Math.min(numeric(checked), 0.9999))}</dd>
        </div>
        <div>
          <dt>verdict</dt>
          <dd class={verdict === "holds" ? "good" : verdict === "not checked" ? "some" : "bad"}>{said}</dd>
        </div>
        {recording.loss !== null && (
          <div>
            <dt>loss</dt>
            <dd class="number">{general(numeric(recording.loss), 7)}</dd>
          </div>
        )}
        {error !== 0 && (
          <div>
            <dt>moved by rounding</dt>
            <dd class="number">{plus(error)}</dd>
          </div>
        )}
      </dl>
      <p class="quiet">
        {recording.fed && <>Fed: {recording.fed}. </>}
        {checked_calls.toLocaleString("en")} of {arithmetic_calls.toLocaleString("en")} calls that compute were done again in float64;{" "}
        {moved_calls.toLocaleString("en")} more move data, {drawn_calls.toLocaleString("en")} draw or reserve.
      </p>
      <Regions regions={recording.regions} />
      {unchecked.length > 0 && (
        <ul class="unchecked-calls">
          {unchecked.map((one) => (
            <li key={`${one.operation} ${one.why}`}>
              {one.calls} × <code>{operation(one.operation)}</code> not checked: {one.why}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

/** Compiled code, which ran as it was written: how much of it was held against that, and what does not hold. */
function Regions({ regions }: { regions: RegionDocument[] }) {
  const rest = regions.filter((one) => one.verdict !== "holds");
  if (!regions.length) return null;
  return (
    <>
      <p class={rest.length ? "some" : "quiet"}>
        Compiled code ran as it was written, so that each call is seen; {regions.length - rest.length} of {regions.length} compiled regions, run beside on the same inputs, have the same results and gradients within rounding.
      </p>
      {rest.length > 0 && (
        <ul class="unchecked-calls">
          {rest.slice(0, SHOWN).map((one, place) => (
            <li key={place} class={one.verdict === "not checked" ? "" : "bad"}>
              compiled <code>{one.name}</code> in {one.module || "no module"}, {one.source}: {one.said}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

/** Calls that are beyond rounding, or made what is not finite. */
function Faults({ recording, choose, chosen }: { recording: RecordingDocument; choose: (call: number) => void; chosen: number | null }) {
  const numbers = recording.wrong.length ? recording.wrong : recording.origins;
  if (!numbers.length) return null;
  return (
    <section>
      <h2>{recording.wrong.length ? "Beyond rounding" : "Where numbers ended"}</h2>
      <ol class="faults">
        {numbers.slice(0, SHOWN).map((number) => {
          const call = recording.calls[number] as CallDocument;
          return (
            <li key={number}>
              <button class="plain" aria-pressed={number === chosen} onClick={() => choose(number)}>
                <code>{operation(call.operation)}</code> {standing(call)}
              </button>{" "}
              {call.wrong ? <Share call={call} /> : <span class="bad">the first to make {call.ended}</span>}
            </li>
          );
        })}
      </ol>
      {numbers.length > SHOWN && <p class="quiet">and {numbers.length - SHOWN} more</p>}
    </section>
  );
}

/** What every call added to a number of the step, by the call's number. */
export interface Moved {
  /** The loss, or a number of the gradient. */
  of: string;
  by: Map<number, number>;
}

function Account({ recording, choose }: { recording: RecordingDocument; choose: (call: number) => void }) {
  const of = useSignal("the loss");
  const ofLoss = new Map(recording.calls.map((call) => [call.number, numeric(call.error)] as const));
  const all: Moved[] = [
    { of: "the loss", by: ofLoss },
    ...recording.gradients.map((one) => ({ of: one.of, by: new Map(one.calls.map((call, at) => [call, numeric(one.errors[at]!)] as const)) })),
  ];
  const moved = all.find((one) => one.of === of.value)!;
  const gradient = recording.gradients.find((one) => one.of === of.value);
  const largest = [...moved.by].filter(([, error]) => error !== 0).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  if (!largest.length && !recording.gradients.length) return null;
  return (
    <section>
      <h2>Who moved {moved.of}</h2>
      {all.length > 1 && (
        <select aria-label="the number that was moved" value={of.value} onChange={(event) => (of.value = event.currentTarget.value)}>
          {all.map((one) => (
            <option key={one.of}>{one.of}</option>
          ))}
        </select>
      )}
      <p class="quiet">
        {gradient
          ? "Each call's rounding, forward and backward, times how much this number depends on its result, to first order."
          : "Each call's rounding, times the gradient there: by how much it moved what backward() began at, to first order."}
      </p>
      {gradient && <Measured gradient={gradient} />}
      {largest.length > 0 && <Flame key={moved.of} recording={recording} moved={moved} choose={choose} />}
      <div class="scroll" tabIndex={0} role="region" aria-label={`calls by how much they moved ${moved.of}`}>
        <table>
          <thead>
            <tr>
              <th class="number">by</th>
              <th>operation</th>
              <th>module</th>
            </tr>
          </thead>
          <tbody>
            {largest.slice(0, SHOWN).map(([number, error]) => {
              const call = recording.calls[number] as CallDocument;
              return (
                <tr key={number}>
                  <td class="number">{plus(error)}</td>
                  <td>
                    <button class="plain" onClick={() => choose(number)}>
                      <code>{operation(call.operation)}</code>
                    </button>
                  </td>
                  <td>
                    {call.module || "outside of modules"}
                    {call.phase !== "forward" && `, ${call.phase}`}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** All of it beside what is measured. */
function Measured({ gradient }: { gradient: GradientDocument }) {
  const [engine, error, beyond] = [numeric(gradient.engine), numeric(gradient.error), numeric(gradient.beyond)];
  const measured = gradient.exact === null ? null : engine - numeric(gradient.exact);
  return (
    <p>
      {general(engine, 6)}, moved by {plus(error)}
      {measured !== null && `; against float64 ${plus(measured)}, left over ${plus(measured - error - beyond)}`}.
      {beyond !== 0 && ` Beyond first order ${plus(beyond)}, by curvature, kinks and choices: ${gradient.bent.join(", ")}.`}
      {gradient.cancels && " Contributions cancel: what is beyond the first order may be as large as what is left of them."}
      {gradient.unknown > 0 && ` ${gradient.unknown} ${gradient.unknown === 1 ? "call" : "calls"} could not be followed: what they add is missing.`}
    </p>
  );
}

/** With its sign, whichever it is. */
export function plus(value: number): string {
  return value > 0 ? `+${general(value, 2)}` : signed(general(value, 2));
}
