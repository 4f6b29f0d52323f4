// One quantity of the forward pass: how it was made, its numbers, its gradient, and how far both agree.
import { signal, useSignal } from "@preact/signals";
import type { QuantityDocument } from "../documents";
import type { Kind } from "../source/source";
import { arrive } from "../parts/arrive";
import { Equation } from "../parts/equation";
import { general, numeric, si } from "../numbers";
import { Seen } from "../parts/seen";
import { useStep, waits } from "../parts/step-context";
import { Comparison } from "../parts/verdict";
import { Value } from "../parts/value";
import { ArrayView, Room } from "./array";
import { NotFiniteFrom, Pins } from "./pins";

/** Pixels around the arrays of a quantity: facts, equation, comparisons. */
const AROUND = 130;

/** One quantity: its name at once, the rest when it comes near the screen. */
export function Quantity({ quantity }: { quantity: QuantityDocument }) {
  const shown = useStep();
  const { name } = quantity;
  return (
    <section class="quantity" id={anchor(name)} aria-label={name}>
      <h3>
        <code>{own(name)}</code> <span class="shape">{shape(quantity.shape, quantity.axes)}</span>{" "}
        <span class="branch">{quantity.branch}</span>
      </h3>
      <Seen waits={waits(shown)} name="" width={640} height={AROUND} room={<Room place={shown.view.arrays[name]} isGradient={quantity.grad_norm !== null} />}>
        <Sides quantity={quantity} />
      </Seen>
    </section>
  );
}

/** How it was made and its gradient, next to each other. */
function Sides({ quantity }: { quantity: QuantityDocument }) {
  const { view } = useStep();
  const { statistics, adjoint, inputs } = quantity;
  const kind = useSignal<Kind>("value");
  const kinds = (view.arrays[quantity.name]?.kinds ?? []).filter((one) => one !== "gradient");
  const passes = adjoint.flatMap((line, place) => (line ? [{ line, to: inputs[place] ?? "" }] : []));
  return (
    <>
      <p class="quiet facts">
        made by {quantity.operation} of{" "}
        {inputs.map((name, at) => (
          <>
            {at > 0 && ", "}
            <Name name={name} />
          </>
        ))}{" "}
        · {quantity.format}
        {quantity.unit && ` · ${quantity.unit}`}
        {quantity.flops > 0 && ` · ${si(quantity.flops)}FLOP`} · rms {general(numeric(statistics.rms), 4)}, from{" "}
        <Value value={statistics.smallest} digits={4} /> to <Value value={statistics.largest} digits={4} />
        {statistics.not_finite > 0 && <strong class="not-finite"> · {statistics.not_finite} not finite</strong>}
        {statistics.not_finite > 0 && <NotFiniteFrom name={quantity.name} />}
      </p>
      <Pins name={quantity.name} />
      <div class="sides">
        <div class="side">
          <Equation latex={quantity.equation} mathml={view.mathml} frame="forward" />
          {kinds.length > 1 && (
            <label class="kinds">
              numbers of{" "}
              <select value={kind.value} onChange={(event) => (kind.value = event.currentTarget.value as Kind)}>
                {kinds.map((one) => (
                  <option key={one} value={one}>
                    {KINDS[one]}
                  </option>
                ))}
              </select>
            </label>
          )}
          <ArrayView name={quantity.name} kind={kind.value} frame="forward" caption={kinds.length > 1 ? KINDS[kind.value] : "value"} />
        </div>
        {quantity.grad_norm !== null && (
          <div class="side">
            {passes.map(({ line, to }) => (
              <div key={to + line} class="passes">
                <span class="quiet">to {own(to)}</span>
                <Equation latex={line} mathml={view.mathml} frame="backward" />
              </div>
            ))}
            <ArrayView name={quantity.name} kind="gradient" frame="backward" caption="gradient" />
          </div>
        )}
      </div>
      <div class="comparisons">
        <Comparison check={quantity.forward} />
        {quantity.grad_norm !== null && quantity.backward && <Comparison check={quantity.backward} />}
        <span class="quiet">{quantity.source}</span>
      </div>
    </>
  );
}

const KINDS: Record<Kind, string> = {
  value: "the engine",
  gradient: "gradient",
  exact: "the mathematics, float64",
  difference: "engine − mathematics",
  share: "difference, as a share of its bound",
};

/** A quantity's or parameter's name, as a link to where it stands in the step. */
export function Name({ name }: { name: string }) {
  const { view } = useStep();
  const known = [...view.step.quantities, ...view.step.parameters].some((one) => one.name === name);
  if (!known) return <code>{own(name)}</code>;
  return (
    <a href={`#${anchor(name)}`} onClick={(event) => show(event, anchor(name))}>
      <code>{own(name)}</code>
    </a>
  );
}

/** A place that is asked for in a folded station, which opens and goes there. */
export const wanted = signal<string | null>(null);

/** The fragment is the address of a view, so that places within one are scrolled to, their folds opened. */
export function show(event: Event | null, id: string): void {
  event?.preventDefault();
  const found = document.getElementById(id);
  wanted.value = found && !found.matches(".unmade") ? null : id;
  if (!found || wanted.value !== null) return;
  for (let at: HTMLElement | null = found; at; at = at.parentElement) if (at instanceof HTMLDetailsElement) at.open = true;
  arrive(found);
  const heading = found.querySelector<HTMLElement>("summary, h2, h3");
  if (heading && heading.tagName !== "SUMMARY") heading.tabIndex = -1;
  heading?.focus({ preventScroll: true });
}

export function anchor(name: string): string {
  return `at-${name}`;
}

/** A name without its block. */
export function own(name: string): string {
  return name.replace(/^blocks\.\d+\./, "");
}

export function shape(sizes: number[], axes: string[]): string {
  if (!sizes.length) return "one number";
  return sizes.map((size, axis) => `${axes[axis] ?? ""} ${size}`.trim()).join(" × ");
}
