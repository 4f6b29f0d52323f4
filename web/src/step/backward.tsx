// The backward pass in its own order: from the loss to the tokens, what each operation passes back.
import { Seen } from "../parts/seen";
import { useStep, waits } from "../parts/step-context";
import { Comparison, Mark } from "../parts/verdict";
import { Equation } from "../parts/equation";
import { Folded } from "../parts/folded";
import { Value } from "../parts/value";
import { ArrayView } from "./array";
import { worst } from "./marks";
import { Pins } from "./pins";
import { Name, own } from "./quantity";

/** Pixels of a folded line. */
export const LINE = 33;

export function Backward() {
  const shown = useStep();
  const { view } = shown;
  const reached = view.step.quantities.filter((one) => one.grad_norm !== null).reverse();
  const found = reached.map((one) => one.backward).filter((one) => one !== null);
  return (
    <details class="station backward" id="station-backward" open>
      <summary>
        <h2>backward</h2>
        <span class="branch">calculus</span>
        <Mark check={worst(found)} />
      </summary>
      <Pins station="backward" />
      <p class="quiet">From the loss to the tokens by the chain rule: each operation passes the gradient of its result back to what it was made of.</p>
      <Seen waits={waits(shown)} name="" width={640} height={reached.length * LINE}>
        <ol class="chain">
          {reached.map((one) => (
            <li key={one.name}>
              <Passed name={one.name} />
            </li>
          ))}
        </ol>
      </Seen>
    </details>
  );
}

function Passed({ name }: { name: string }) {
  const { view } = useStep();
  const one = view.step.quantities.find((quantity) => quantity.name === name);
  if (!one) return null;
  const summary = (
    <>
      <code>grad({one.name})</code> <Mark check={one.backward} /> <span class="quiet">norm </span>
      <Value value={one.grad_norm ?? 0} digits={4} />
    </>
  );
  return (
    <Folded class="moved" summary={summary}>
      {() => (
        <>
          <ArrayView name={one.name} kind="gradient" frame="backward" caption="gradient" room={640} />
          {one.adjoint.map(
            (line, place) =>
              line && (
                <div key={line} class="passes">
                  <span class="quiet">
                    {one.operation} passes to <Name name={one.inputs[place] ?? ""} />
                  </span>
                  <Equation latex={line} mathml={view.mathml} frame="backward" />
                </div>
              ),
          )}
          {one.backward && <Comparison check={one.backward} />}
          <p class="quiet">of {own(one.name)}, {one.source}</p>
        </>
      )}
    </Folded>
  );
}
