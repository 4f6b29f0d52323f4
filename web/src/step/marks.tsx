// The verdict of a whole stage: what lies nearest to its bound, or what is wrong.
import type { Check, StationDocument, StepDocument } from "../documents";
import { numeric } from "../numbers";
import { useStep } from "../parts/step-context";
import { Mark } from "../parts/verdict";

export function StationMark({ station, way }: { station: StationDocument; way: "forward" | "backward" }) {
  const { view } = useStep();
  const found = worst(checks(view.step, station, way));
  if (!found) return null;
  return (
    <span class={`mark-of ${way}`}>
      <span class="quiet">{way}</span> <Mark check={found} />
    </span>
  );
}

export function checks(step: StepDocument, station: StationDocument, way: "forward" | "backward"): Check[] {
  const quantities = step.quantities.filter((one) => station.quantities.includes(one.name));
  if (way === "forward") return quantities.map((one) => one.forward);
  const parameters = step.parameters.filter((one) => station.parameters.includes(one.name));
  const found = [...quantities.map((one) => one.backward), ...parameters.map((one) => one.gradient)];
  return found.filter((one) => one !== null);
}

/** The first that is wrong, else the one nearest to its bound. */
export function worst(all: Check[]): Check | null {
  const wrong = all.find((check) => !check.holds);
  return wrong ?? all.reduce<Check | null>((a, b) => (a && numeric(a.worst) >= numeric(b.worst) ? a : b), null);
}
