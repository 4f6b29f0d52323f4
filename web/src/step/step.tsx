// One step, opened: a flow that one can walk, and beside it the entry that was clicked.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { StepView } from "../documents";
import { entry as parsed, type Address } from "../address";
import type { ViewProps } from "../page";
import { useLoaded } from "../parts/loaded";
import { Search, type Found } from "../parts/search";
import { go, StepContext, type Shown } from "../parts/step-context";
import { Backward } from "./backward";
import { EntryPanel } from "./entry";
import { Flow } from "./flow";
import { Head } from "./head";
import { anchor, show } from "./quantity";
import { Station, stationId } from "./station";
import { Update } from "./update";
import { visit, walk } from "./walk";
import "../style/step.css";

/** Stages that are open at first: of deep models the first and the last ones. */
const OPEN = 6;

export function Step({ source, address }: ViewProps<Extract<Address, { view: "step" }>>) {
  const step = useMemo(() => source.step(address.run, address.step), [source, address.run, address.step]);
  const doing = useSignal("");
  const view = useLoaded<StepView>(() => step.document((said) => (doing.value = said)), [step]);
  const findings = useLoaded(() => step.findings(), [step]);
  const row = useSignal(0);
  const entry = address.entry === null ? null : parsed(address.entry);
  useEffect(() => {
    if (address.entry === null) return;
    visit(address.entry);
    const [first] = parsed(address.entry).index;
    const axes = view?.arrays[bare(parsed(address.entry).name)]?.axes;
    if (axes?.[0] === "batch" && first !== undefined) row.value = first;
  }, [address.entry, view]);
  useEffect(() => {
    if (entry && view && walk.value.length <= 1) show(null, anchor(bare(entry.name)));
  }, [view]);
  if (!view)
    return (
      <p class="quiet loading" role="status">
        opening step {address.step} of {address.run} … {doing}
      </p>
    );
  const shown: Shown = { source: step, view, run: address.run, step: address.step, row, entry, findings: findings ?? [] };
  const forward = view.step.stations.filter((one) => one.station !== "backward" && one.station !== "update");
  return (
    <StepContext.Provider value={shown}>
      <div class={`step${entry ? " with-entry" : ""}`}>
        <div class="step-flow">
          <Head />
          <Search label="Find a quantity, a parameter, a station" all={names(shown)} />
          <Flow />
          {forward.map((one, at) => (
            <Station key={one.title} station={one} open={forward.length <= OPEN || at < 2 || at >= forward.length - 2} />
          ))}
          <Backward />
          <Update />
        </div>
        {entry && <EntryPanel entry={entry} />}
      </div>
    </StepContext.Provider>
  );
}

/** The quantity or parameter that a gradient, a moment or an update is of. */
function bare(name: string): string {
  return name.replace(/^(?:grad|m|v|update)\((.+)\)$/, "$1");
}

/** Everything of the step that has a name. */
function names(shown: Shown): Found[] {
  const { step } = shown.view;
  return [
    ...step.stations.map((one) => ({ text: one.title, about: "station", open: () => show(null, stationId(one)) })),
    ...step.quantities.map((one) => ({
      text: one.name,
      about: `${one.operation}, ${one.branch}: ${one.equation}`,
      open: () => go(shown, { name: one.name, index: one.forward.index.length === one.shape.length ? one.forward.index : one.shape.map(() => 0) }),
    })),
    ...step.parameters.map((one) => ({
      text: one.name,
      about: `parameter, ${one.shape.join(" × ")}`,
      open: () => go(shown, { name: one.name, index: one.shape.map(() => 0) }),
    })),
  ];
}

