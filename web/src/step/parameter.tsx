// One parameter: its weights, their gradient, and what the update made of them.
import type { ParameterDocument } from "../documents";
import { Comparison, Mark } from "../parts/verdict";
import { Value } from "../parts/value";
import { Seen } from "../parts/seen";
import { useStep, waits } from "../parts/step-context";
import { ArrayView, Room } from "./array";
import { Pins } from "./pins";
import { anchor, own, shape } from "./quantity";

/** Pixels around its arrays: facts and comparisons. */
const AROUND = 58;

export function Parameter({ parameter }: { parameter: ParameterDocument }) {
  const shown = useStep();
  const checks = [...(parameter.gradient ? [parameter.gradient] : []), ...parameter.checks];
  const worst = checks.find((check) => !check.holds) ?? checks.reduce((a, b) => (Number(b.worst) > Number(a.worst) ? b : a), checks[0]!);
  return (
    <section class="quantity parameter" id={anchor(parameter.name)} aria-label={parameter.name}>
      <h3>
        <code>{own(parameter.name)}</code> <span class="shape">{shape(parameter.shape, parameter.axes)}</span>{" "}
        <span class="branch">learned</span> {worst && <Mark check={worst} />}
      </h3>
      <Seen waits={waits(shown)} name="" width={640} height={AROUND} room={<Room place={shown.view.arrays[parameter.name]} isGradient />}>
        <p class="quiet facts">
          norm of the gradient <Value value={parameter.grad_norm} digits={4} /> · the update changed{" "}
          <Value value={parameter.relative_change} digits={3} /> of its norm · weight decay {parameter.decayed ? "applies" : "does not apply"}
        </p>
        <Pins name={parameter.name} />
        <div class="sides">
          <div class="side">
            <ArrayView name={parameter.name} frame="forward" caption="weights before the step" />
          </div>
          <div class="side">
            <ArrayView name={parameter.name} kind="gradient" frame="backward" caption="gradient" />
          </div>
        </div>
        <div class="comparisons">
          {checks.map((check) => (
            <Comparison key={check.kind + check.name} check={check} />
          ))}
        </div>
      </Seen>
    </section>
  );
}
