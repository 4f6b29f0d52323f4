// The update: clipping, the rule's equations, and what it made of every parameter.
import type { ParameterDocument } from "../documents";
import { Equation } from "../parts/equation";
import { Folded } from "../parts/folded";
import { Seen } from "../parts/seen";
import { useStep, waits } from "../parts/step-context";
import { Comparison, Mark } from "../parts/verdict";
import { Value } from "../parts/value";
import { ArrayView } from "./array";
import { LINE } from "./backward";
import { worst } from "./marks";
import { Pins } from "./pins";
import { own } from "./quantity";

export function Update() {
  const shown = useStep();
  const { view } = shown;
  const { update, parameters } = view.step;
  return (
    <details class="station update" id="station-update" open>
      <summary>
        <h2>update</h2>
        <span class="branch">optimisation</span>
        <Mark check={worst([...update.checks, ...parameters.flatMap((one) => one.checks)])} />
      </summary>
      <Pins station="update" />
      <p>
        Update {update.number.toLocaleString("en")} at a rate of <Value value={update.learning_rate} />. The norm of all gradients together is{" "}
        <Value value={update.grad_norm_before_clip} />
        {update.max_grad_norm === null ? (
          ", which is not clipped"
        ) : (
          <>
            , clipped to <Value value={update.max_grad_norm} />: each is multiplied by <Value value={update.clip_scale} />
          </>
        )}
        . The rule remembers {update.optimizer_values.toLocaleString("en")} numbers.
      </p>
      {update.rules.map((rule) => (
        <section key={rule.rule} class="quantity">
          <h3>
            {rule.rule} <span class="quiet">of {rule.parameters.length} parameters</span>
          </h3>
          {rule.equations.map((line) => (
            <Equation key={line} latex={line} mathml={view.mathml} frame="update" />
          ))}
          <p class="quiet">{rule.source}</p>
        </section>
      ))}
      <Seen waits={waits(shown)} name="" width={640} height={parameters.length * LINE}>
        {parameters.map((one) => (
          <Folded key={one.name} class="moved" summary={<Change of={one} />}>
            {() => (
              <>
                <Moved name={one.name} />
                <div class="comparisons">
                  {one.checks.map((check) => (
                    <Comparison key={check.name} check={check} />
                  ))}
                </div>
              </>
            )}
          </Folded>
        ))}
      </Seen>
    </details>
  );
}

function Change({ of }: { of: ParameterDocument }) {
  return (
    <>
      <code>{of.name}</code> <Mark check={worst(of.checks)} />{" "}
      <span class="quiet">
        changed by <Value value={of.relative_change} digits={3} /> of its norm
      </span>
    </>
  );
}

function Moved({ name }: { name: string }) {
  const { view } = useStep();
  const config = view.step.config as { update?: { optimizer?: string } };
  const moments = config.update?.optimizer === "sgd" ? [] : config.update?.optimizer === "adamw" ? ["m", "v"] : ["m"];
  return (
    <div class="sides">
      <ArrayView name={`update(${name})`} frame="update" caption={`${own(name)} after the update`} />
      {moments.map((kind) => (
        <ArrayView key={kind} name={`${kind}(${name})`} frame="update" caption={`${kind}, what the rule remembers`} />
      ))}
    </div>
  );
}
