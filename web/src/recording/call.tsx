// One call: where it stands, and its entry that is nearest to the bound.
import type { CallDocument } from "../documents";
import { general, numeric } from "../numbers";
import { Value } from "../parts/value";

/** addmm of aten.addmm.default. */
export function operation(name: string): string {
  return name.replace(/^aten\./, "").replace(/\.default$/, "");
}

export function standing(call: CallDocument): string {
  return `in ${call.module || "no module"}, ${call.phase}`;
}

/** ✓ 0.42 of its bound. */
export function Share({ call }: { call: CallDocument }) {
  if (call.check === "unchecked") return <span class="mark unchecked">not checked</span>;
  if (call.worst === null) return <span class="quiet">{call.check}</span>;
  const share = numeric(call.worst.share);
  return (
    <span class={`mark ${call.wrong ? "fails" : "holds"}`} title="of what rounding allows">
      {call.wrong ? "✗" : "✓"} {share === 0 ? "equal" : general(share, 2)}
    </span>
  );
}

export function Call({ call }: { call: CallDocument }) {
  const { worst } = call;
  return (
    <>
      <h2>
        <code>{operation(call.operation)}</code> <Share call={call} />
      </h2>
      <dl class={`call ${call.phase}`}>
        <dt>module</dt>
        <dd>{call.module || "none"}</dd>
        <dt>phase</dt>
        <dd>{call.phase}</dd>
        <dt>asked for at</dt>
        <dd>
          <code>{call.source || "no line of Python"}</code>
        </dd>
        <dt>results</dt>
        <dd>
          {call.format} {call.shapes.map((shape) => `[${shape.join(", ")}]`).join(", ")}
        </dd>
        {worst && call.check !== "moved" && (
          <>
            <dt>{call.wrong ? "furthest off" : "nearest to its bound"}</dt>
            <dd>
              <code>
                {worst.output > 0 && `result ${worst.output} `}[{worst.index.join(", ")}]
              </code>
            </dd>
            <dt>engine</dt>
            <dd>
              <Value value={worst.engine} digits={9} />
            </dd>
            <dt>NumPy, float64</dt>
            <dd>
              <Value value={worst.expected} digits={9} />
            </dd>
            <dt>difference</dt>
            <dd>
              <Value value={numeric(worst.engine) - numeric(worst.expected)} digits={3} /> of ± <Value value={worst.bound} digits={3} /> allowed
            </dd>
          </>
        )}
        {worst && call.check === "moved" && <dd class="wide">not the same numbers: {general(numeric(worst.engine), 9)} in the place of {general(numeric(worst.expected), 9)}</dd>}
        {call.ended && <dd class="wide bad">it made {call.ended === "inf" ? "infinities of finite numbers" : "nan of numbers"}</dd>}
        {numeric(call.error) !== 0 && (
          <>
            <dt>moved the loss by</dt>
            <dd>
              <Value value={call.error} digits={3} />
            </dd>
          </>
        )}
        {call.why && <dd class="wide">{call.why}</dd>}
        {numeric(call.condition) > 0 && (
          <>
            <dt>condition</dt>
            <dd>
              <Value value={call.condition} digits={3} />, by which it amplifies relative errors of what came in
            </dd>
          </>
        )}
        {call.cause !== "" && (
          <>
            <dt>not exact because</dt>
            <dd>{call.cause}</dd>
          </>
        )}
      </dl>
    </>
  );
}
