// What one comparison of the engine with the mathematics found.
import type { Check } from "../documents";
import { entry as parsed, written } from "../address";
import { general, numeric } from "../numbers";
import { Folded } from "./folded";
import { EntryLink, Value } from "./value";

/** ✓ 0.42: the largest difference is 0.42 of what rounding allows. */
export function Mark({ check }: { check: Check | null }) {
  if (check === null) return null;
  const { verdict } = check.verdict;
  if (check.holds)
    return (
      <span class="mark holds" title="the largest difference, as a share of what rounding allows">
        ✓ {general(numeric(check.worst), 2)}
      </span>
    );
  if (verdict === "not checked") return <span class="mark unchecked">not checked</span>;
  return <span class="mark fails">✗ {verdict}</span>;
}

/** Engine, mathematics, difference and bound, at the entry that lies nearest to its bound. */
export function Comparison({ check }: { check: Check }) {
  const summary = (
    <>
      {check.kind} <Mark check={check} />
    </>
  );
  return (
    <Folded class="comparison" summary={summary}>
      {() => <Compared check={check} />}
    </Folded>
  );
}

function Compared({ check }: { check: Check }) {
  const { verdict } = check;
  const at = written({ name: check.name, index: check.index });
  const known = /^[\w.]+$|^grad\([\w.]+\)$/.test(parsed(check.name).name);
  const difference = numeric(check.engine) - numeric(check.expected);
  return (
    <dl>
      <dt>nearest to its bound</dt>
      <dd>{known ? <EntryLink entry={at}>{at}</EntryLink> : at}</dd>
      <dt>engine</dt>
      <dd>
        <Value value={check.engine} digits={9} />
      </dd>
      <dt>mathematics, float64</dt>
      <dd>
        <Value value={check.expected} digits={9} />
      </dd>
      <dt>difference</dt>
      <dd>
        <Value value={difference} digits={3} /> of ± <Value value={check.bound} digits={3} /> allowed:{" "}
        <Value value={check.worst} digits={3} />
      </dd>
      <dt>compared</dt>
      <dd>
        {check.compared.toLocaleString("en")} of {check.entries.toLocaleString("en")} entries
      </dd>
      {"explanation" in verdict && <dd class="wide">{verdict.explanation}</dd>}
      {"why" in verdict && <dd class="wide">{verdict.why}</dd>}
    </dl>
  );
}
