// The account of the loss: every label, what it costs, and its share of the mean.
import { useRef } from "preact/hooks";
import { general, numeric } from "../numbers";
import { Equation } from "../parts/equation";
import { useLoaded } from "../parts/loaded";
import { useWhileNear } from "../parts/seen";
import { useStep } from "../parts/step-context";
import { Token } from "../parts/text";
import { Value } from "../parts/value";

const SHOWN = 64;

export function LossAccount() {
  const { source, view, row } = useStep();
  const loss = view.step.loss;
  const box = useRef<HTMLElement>(null);
  const at = useWhileNear(row.value, box);
  const targets = useLoaded(
    async () => ("targets" in view.arrays ? source.slice(`targets[${at}]`, "value") : null),
    [source, at],
  );
  const labels = loss.rows[at] ?? [];
  const cited = "log_probabilities" in view.arrays;
  const rest = loss.objective === "next_token";
  return (
    <section class="account" aria-label="the account of the loss" ref={box}>
      <h3>The account of the loss</h3>
      <Equation latex={loss.formula} mathml={view.mathml} frame="forward" />
      <p>
        <Value value={loss.value} entry="loss" digits={9} /> nats per label by the engine, <Value value={loss.exact} digits={9} /> redone in
        float64; rounding moved it by <Value value={loss.error} digits={3} /> to first order. It is as unsure as among <Value value={loss.perplexity} digits={5} /> equally likely tokens.{" "}
        {loss.labels.toLocaleString("en")} labels of {loss.positions.toLocaleString("en")} positions
        {rest && (
          <>
            , each with weight <Value value={loss.weight} digits={4} />
          </>
        )}
        .
      </p>
      {rest && (
        <div class="scroll" tabIndex={0} role="region" aria-label="every label of this row">
          <table>
            <thead>
              <tr>
                <th>after</th>
                <th>comes</th>
                <th class="number">nats</th>
                <th class="number">probability</th>
                <th class="number">adds to the loss</th>
              </tr>
            </thead>
            <tbody>
              {labels.slice(0, SHOWN).map(([text, nats], position) => {
                const target = targets?.data[position];
                const entry = cited && target !== undefined && nats !== null ? `log_probabilities[${at},${position},${target}]` : undefined;
                return (
                  <tr key={position}>
                    <td>
                      <Token text={view.tokens[at]?.[position] ?? ""} />
                    </td>
                    <td>
                      <Token text={text} />
                    </td>
                    {nats === null ? (
                      <td colSpan={3} class="quiet">
                        no label
                      </td>
                    ) : (
                      <>
                        <td class="number">
                          <Value value={nats} {...(entry ? { entry } : {})} />
                        </td>
                        <td class="number">{general(Math.exp(-numeric(nats)), 4)}</td>
                        <td class="number">
                          <Value value={numeric(nats) * numeric(loss.weight)} />
                        </td>
                      </>
                    )}
                  </tr>
                );
              })}
            </tbody>
          </table>
          {labels.length > SHOWN && <p class="quiet">the first {SHOWN} of {labels.length} positions</p>}
        </div>
      )}
    </section>
  );
}
