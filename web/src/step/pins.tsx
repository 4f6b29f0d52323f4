// Pins at stations and arrays: what the doctor found there, and where numbers first stop being finite.
import { useSignal } from "@preact/signals";
import type { Finding as FindingDocument, PlacedFinding, StepDocument } from "../documents";
import { print, written } from "../address";
import { type Shown, useStep } from "../parts/step-context";
import { EntryLink } from "../parts/value";
import { Finding } from "../runs/findings";

const SIGNS = { notice: "i", warning: "!", fault: "×" };

/** The findings of a station, or of one of its arrays; a pin opens what it says. */
export function Pins({ station, name }: { station?: string; name?: string }) {
  const { findings, view } = useStep();
  const opened = useSignal<number | null>(null);
  const own = findings.value.filter((one) => (name === undefined ? one.station === station : bare(one.name) === name));
  const card = own.find((one) => one.number === opened.value);
  const begins = name === undefined ? origins(view.step, station ?? "") : [];
  if (!own.length && !begins.length) return null;
  return (
    <div class="found-here">
      {begins.map((one) => (
        <span key={one.quantity} class="begins">
          <i class="pin-sign odd" aria-hidden="true">
            ×
          </i>{" "}
          numbers first stop being finite at <EntryLink entry={written({ name: one.quantity, index: one.index })}>{written({ name: one.quantity, index: one.index })}</EntryLink>
        </span>
      ))}
      {own.map((one) => (
        <button
          key={one.number}
          type="button"
          class={`pin-of ${one.finding.severity}`}
          aria-expanded={opened.value === one.number}
          onClick={() => (opened.value = opened.value === one.number ? null : one.number)}
        >
          <i class="pin-sign" aria-hidden="true">
            {SIGNS[one.finding.severity]}
          </i>{" "}
          {one.finding.rule} <span class="quiet">{when(one.finding)}</span>
        </button>
      ))}
      {card && <Card placed={card} />}
    </div>
  );
}

function Card({ placed: { finding, number, name, index } }: { placed: PlacedFinding }) {
  const { run, source } = useStep();
  const entry = name !== null && index.length > 0 ? written({ name, index }) : null;
  return (
    <Finding finding={finding}>
      <p>
        {entry !== null && <EntryLink entry={entry}>{entry}</EntryLink>}{" "}
        {source.isServed && <a href={print({ view: "run", run, query: `finding=${number}` })}>among the findings of the run</a>}
      </p>
    </Finding>
  );
}

/** A mark in the flow: how many findings a station has, by the worst of them. */
export function Badge({ station }: { station: string }) {
  const { findings, view } = useStep();
  const own = findings.value.filter((one) => one.station === station).map((one) => one.finding.severity);
  const severity = (["fault", "warning", "notice"] as const).find((one) => own.includes(one));
  const begins = origins(view.step, station).length > 0;
  if (!severity && !begins) return null;
  const said = [begins && "numbers first stop being finite here", own.length && `${own.length} ${own.length === 1 ? "finding" : "findings"}`].filter(Boolean).join(", ");
  return (
    <i class={`pin-sign ${begins ? "odd" : severity}`} title={said} role="img" aria-label={said}>
      {begins ? "×" : SIGNS[severity ?? "notice"]}
    </i>
  );
}

/** Beside an array that is not finite: the way to where that began, in the order of the step. */
export function NotFiniteFrom({ name }: { name: string }) {
  const { view } = useStep();
  const [first] = view.step.verdict.not_finite;
  if (!first || first.quantity === name) return null;
  const entry = written({ name: first.quantity, index: first.index });
  return (
    <>
      {" "}
      · begins at <EntryLink entry={entry}>{entry}</EntryLink>
    </>
  );
}

/** Entries of an array that a pin stands on: origins of what is not finite, and what a finding names. */
export function pinned({ findings, view }: Pick<Shown, "findings" | "view">, name: string): number[][] {
  const odd = view.step.verdict.not_finite.filter((one) => one.quantity === name).map((one) => one.index);
  const named = findings.value.filter((one) => one.name === name && one.index.length > 0).map((one) => one.index);
  return [...odd, ...named];
}

function origins(step: StepDocument, station: string) {
  const stage = step.stations.find((one) => one.title === station);
  const [first] = step.verdict.not_finite;
  if (!first || !stage) return [];
  const around = /^(grad|m|v|update)\((.+)\)$/.exec(first.quantity);
  const part = around === null ? "forward" : around[1] === "grad" ? "backward" : "update";
  const home = part === "forward" ? !["backward", "update"].includes(stage.station) && [...stage.quantities, ...stage.parameters].includes(first.quantity) : stage.station === part;
  return home ? [first] : [];
}

function when(finding: FindingDocument): string {
  return finding.step === null ? "before the first step" : `step ${finding.step.toLocaleString("en")}`;
}

function bare(name: string | null): string | null {
  return name === null ? null : (/^(?:grad|m|v|update)\((.+)\)$/.exec(name)?.[1] ?? name);
}
