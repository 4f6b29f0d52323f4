// Every number of a small step on one page, which prints.
import { useMemo } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { ParameterDocument, QuantityDocument, StepView } from "../documents";
import { print, written, type Address } from "../address";
import type { ViewProps } from "../page";
import { exact, general, signed } from "../numbers";
import { colour, css, LIGHT_PALETTE } from "../parts/colours";
import { Equation } from "../parts/equation";
import { indexAt, layout } from "../parts/layout";
import { useLoaded } from "../parts/loaded";
import { labels, StepContext, useStep } from "../parts/step-context";
import { printable, visible } from "../parts/text";
import { Value } from "../parts/value";
import type { Slice, Source, StepSource } from "../source/source";
import { spanOf } from "../parts/matrix-draw";
import { LossAccount } from "../step/loss";
import "../style/worked.css";

export function Worked({ source }: ViewProps<Extract<Address, { view: "worked" }>>) {
  const { run, step } = source.only ?? { run: "worked", step: 1 };
  const from = useMemo(() => source.step(run, step), [source]);
  const view = useLoaded<StepView>(() => from.document(), [from]);
  const row = useSignal(0);
  const [entry, findings] = [useSignal(null), useSignal([])];
  if (!view) return <p class="quiet loading">opening the step …</p>;
  return (
    <StepContext.Provider value={{ source: from, view, run, step, row, entry, findings }}>
      <Numbers source={source} from={from} view={view} />
    </StepContext.Provider>
  );
}

function Numbers({ view }: { source: Source; from: StepSource; view: StepView }) {
  const { run, step: number } = useStep();
  const { step } = view;
  const count = Object.values(view.arrays).reduce((sum, one) => sum + one.shape.reduce((a, b) => a * b, 1), 0);
  return (
    <article class="worked">
      <h1>Every number of one training step</h1>
      <p>
        {printable(step.run)}. {count.toLocaleString("en")} numbers forward, as many gradients, and the update of every weight; {step.verdict.checks}{" "}
        comparisons with a second derivation, {step.verdict.within_bounds} within their bounds. A click on a number writes it out, in{" "}
        <a href={print({ view: "step", run, step: number, entry: null })}>the step</a>. Blue is forward, red backward, green the update.
      </p>
      <h2>The text</h2>
      <Batch />
      {step.stations
        .filter((one) => one.station !== "backward" && one.station !== "update")
        .map((station) => (
          <section key={station.title} class="stage">
            <h2>{station.title}</h2>
            {station.quantities.map((name) => (
              <Quantity key={name} quantity={step.quantities.find((one) => one.name === name)!} />
            ))}
            {station.station === "loss" && <LossAccount />}
          </section>
        ))}
      <section class="stage">
        <h2>update</h2>
        {step.update.rules.flatMap((rule) => rule.equations.map((line) => <Equation key={line} latex={line} mathml={view.mathml} frame="update" />))}
        <p>
          The rate is <Value value={step.update.learning_rate} />, the norm of all gradients <Value value={step.update.grad_norm_before_clip} digits={9} />.
        </p>
        {step.parameters.map((one) => (
          <Parameter key={one.name} parameter={one} />
        ))}
      </section>
    </article>
  );
}

function Batch() {
  const { view } = useStep();
  return (
    <p>
      {view.tokens[0]?.map((text, at) => (
        <span key={at} class="token">
          {visible(text)}
        </span>
      ))}
    </p>
  );
}

function Quantity({ quantity }: { quantity: QuantityDocument }) {
  const { view } = useStep();
  return (
    <section class="array">
      <h3>
        <code>{quantity.name}</code> <span class="branch">{quantity.branch}</span>
      </h3>
      <Equation latex={quantity.equation} mathml={view.mathml} frame="forward" />
      <Table name={quantity.name} kind="value" frame="forward" />
      {quantity.grad_norm !== null && (
        <>
          {quantity.adjoint.map((line) => line && <Equation key={line} latex={line} mathml={view.mathml} frame="backward" />)}
          <Table name={quantity.name} kind="gradient" frame="backward" />
        </>
      )}
    </section>
  );
}

function Parameter({ parameter }: { parameter: ParameterDocument }) {
  return (
    <section class="array">
      <h3>
        <code>{parameter.name}</code>
      </h3>
      <Table name={parameter.name} kind="value" frame="forward" />
      <Table name={parameter.name} kind="gradient" frame="backward" />
      <Table name={`update(${parameter.name})`} kind="value" frame="update" />
    </section>
  );
}

interface TableProps {
  name: string;
  kind: "value" | "gradient";
  frame: string;
}

/** The numbers of an array, six digits each, every digit in data-value; a click opens the entry. */
function Table({ name, kind, frame }: TableProps) {
  const { source, view, run, step } = useStep();
  const bare = name.replace(/^update\((.+)\)$/, "$1");
  const place = view.arrays[bare];
  const slice = useLoaded<Slice>(() => source.slice(name, kind), [source, name, kind]);
  if (!slice || !place) return null;
  const laid = layout(place.shape, place.axes, 0);
  const called = kind === "gradient" ? `grad(${name})` : name;
  const scale = spanOf(slice.data, () => false).largest;
  const size = laid.rows * laid.columns;
  const columns = labels(view, laid.columnAxis, laid.columns, { value: 0 });
  const rows = labels(view, laid.rowAxis, laid.rows, { value: 0 });
  const open = (event: MouseEvent) => {
    const index = (event.target as HTMLElement).closest<HTMLElement>("td")?.dataset["index"];
    if (index !== undefined) location.hash = print({ view: "step", run, step, entry: index ? `${called}[${index}]` : called });
  };
  return (
    <div class={`numbers ${frame}`} role="region" tabIndex={0} aria-label={`numbers of ${called}`}>
      {laid.panels.map((panel, at) => (
        <table key={at} onClick={open}>
          <caption>
            {written({ name: called, index: laid.panels.length > 1 ? panel.index : [] })} {panel.title}
          </caption>
          {columns && (
            <thead>
              <tr>
                {rows && <td />}
                {columns.map((text, c) => (
                  <th key={c} scope="col">
                    {visible(text)}
                  </th>
                ))}
              </tr>
            </thead>
          )}
          <tbody>
            {Array.from({ length: laid.rows }, (_, r) => (
              <tr key={r}>
                {rows && <th scope="row">{visible(rows[r] ?? "")}</th>}
                {Array.from({ length: laid.columns }, (_, c) => {
                  const value = Number(slice.data[at * size + r * laid.columns + c]);
                  const index = place.shape.length ? indexAt(laid, panel.index, r, c).join(",") : "";
                  const hidden = slice.hidden?.[r * laid.columns + c];
                  return (
                    <td
                      key={c}
                      data-index={index}
                      data-value={exact(value)}
                      title={exact(value)}
                      class={hidden ? "hidden" : ""}
                      style={{ "--fill": css(colour(value, 2.5 * scale, LIGHT_PALETTE)) }}
                    >
                      {signed(general(value, 6))}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      ))}
    </div>
  );
}
