// One stage of the forward pass: its quantities in order, and what it learns.
import { useSignal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import type { StationDocument } from "../documents";
import { si } from "../numbers";
import { Seen } from "../parts/seen";
import { useStep, waits } from "../parts/step-context";
import { Parameter } from "./parameter";
import { anchor, Quantity, show, wanted } from "./quantity";
import { StationMark } from "./marks";
import { Lens } from "./lens";
import { LossAccount } from "./loss";
import { Pins } from "./pins";
import { Writers } from "./writers";

export function Station({ station, open }: { station: StationDocument; open: boolean }) {
  const shown = useStep();
  const { view } = shown;
  const opened = useSignal(open);
  const quantities = view.step.quantities.filter((one) => station.quantities.includes(one.name));
  const parameters = view.step.parameters.filter((one) => station.parameters.includes(one.name));
  const branches = [...new Set(quantities.map((one) => one.branch))];
  const places = [stationId(station), ...[...quantities, ...parameters].map((one) => anchor(one.name))];
  const asked = wanted.value !== null && places.includes(wanted.value);
  useLayoutEffect(() => {
    if (asked && opened.value) show(null, wanted.value ?? "");
    else if (asked) opened.value = true;
  }, [asked, opened.value]);
  return (
    <details
      class={`station ${station.station}${opened.value ? "" : " unmade"}`}
      id={stationId(station)}
      open={opened.value}
      onToggle={(event) => (opened.value = event.currentTarget.open)}
    >
      <summary>
        <h2>{station.title}</h2>
        {branches.map((branch) => (
          <span key={branch} class="branch">
            {branch}
          </span>
        ))}
        {station.flops > 0 && <span class="quiet">{si(station.flops)}FLOP</span>}
        <StationMark station={station} way="forward" />
        <StationMark station={station} way="backward" />
      </summary>
      <Pins station={station.title} />
      {opened.value && (
        <>
          {quantities.map((one) => (
            <Quantity key={one.name} quantity={one} />
          ))}
          {station.station === "logits" && (
            <Seen waits={waits(shown)} name="who wrote the logit, and the logit lens" width={640} height={520}>
              <Writers />
              <Lens />
            </Seen>
          )}
          {station.station === "loss" && <LossAccount />}
          {parameters.map((one) => (
            <Parameter key={one.name} parameter={one} />
          ))}
        </>
      )}
    </details>
  );
}

export function stationId(station: StationDocument): string {
  return `station-${station.title.replace(/\W+/g, "-")}`;
}
