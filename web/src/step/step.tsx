// One step, opened: a flow that one can walk, and beside it the entry that was clicked.
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useMemo } from "preact/hooks";
import type { PlacedFinding, StepView } from "../documents";
import { entry as parsed, written, type Address, type Entry } from "../address";
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
const NONE: PlacedFinding[] = [];

export function Step({ source, address }: ViewProps<Extract<Address, { view: "step" }>>) {
  const step = useMemo(() => source.step(address.run, address.step), [source, address.run, address.step]);
  useMemo(() => {
    if (step.isServed && address.entry !== null) step.explain(written(parsed(address.entry))).catch(() => undefined); // its panel says why
  }, [step]); // on the way while the document is
  const doing = useSignal("");
  const view = useLoaded<StepView>(() => step.document((said) => (doing.value = said)), [step]);
  const found = useLoaded(() => step.findings(), [step]);
  const row = useSignal(0);
  const entry = useSignal<Entry | null>(null);
  const findings = useSignal(NONE);
  useLayoutEffect(() => {
    findings.value = found ?? NONE;
  }, [found]);
  useLayoutEffect(() => {
    const asked = address.entry === null ? null : parsed(address.entry);
    entry.value = asked;
    if (address.entry === null || !asked) return;
    visit(address.entry);
    const [first] = asked.index;
    const axes = view?.arrays[bare(asked.name)]?.axes;
    if (axes?.[0] === "batch" && first !== undefined) row.value = first;
  }, [address.entry, view]);
  useLayoutEffect(() => {
    if (entry.value && view && walk.value.length <= 1) show(null, anchor(bare(entry.value.name)));
  }, [view]);
  const shown = useMemo<Shown | null>(
    () => view && { source: step, view, run: address.run, step: address.step, row, entry, findings },
    [step, view, address.run, address.step],
  );
  const whole = useMemo(() => shown && <Whole shown={shown} />, [shown]); // the same element is not drawn again when the entry changes
  if (!shown)
    return (
      <p class="quiet loading" role="status">
        opening step {address.step} of {address.run} … {doing}
      </p>
    );
  return (
    <StepContext.Provider value={shown}>
      <div class={`step${address.entry === null ? "" : " with-entry"}`}>
        {whole}
        {address.entry !== null && <EntryPanel entry={parsed(address.entry)} />}
      </div>
    </StepContext.Provider>
  );
}

/** All of the step: its head, the way through it, its stations. */
function Whole({ shown }: { shown: Shown }) {
  const forward = shown.view.step.stations.filter((one) => one.station !== "backward" && one.station !== "update");
  return (
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

