// The curves of runs: loss with its interval, learning rate, norm of the gradient, speed; findings as pins on the loss.
import { useMemo } from "preact/hooks";

import { count, duration, whole } from "../format";
import { Curve } from "../parts/curve";
import type { Pin } from "../parts/curve-pins";
import type { Along } from "./documents";
import { columnLines, lossLines, placeOf, stepAt } from "./lines";
import { evaluations, type Live } from "./live";

const AXES: Record<Along, string> = { step: "step", tokens: "tokens", time: "time of steps" };

interface Props {
  runs: Live[];
  along: Along;
  log: boolean;
  onStep: (run: string, step: number) => void;
  onFinding: (key: string) => void;
}

export function Curves({ runs, along, log, onStep, onFinding }: Props) {
  const metrics = runs.map((run) => run.metrics);
  const shown = useMemo(() => runs.map((run) => ({ name: run.overview.row.name, metrics: run.metrics })), metrics);
  const sets = [...new Set(runs.flatMap((run) => evaluations(run.overview)))];
  const loss = useMemo(() => lossLines(shown, sets), [shown, sets.join()]);
  const rate = useMemo(() => columnLines(shown, "learning_rate", "rate"), [shown]);
  const norm = useMemo(() => columnLines(shown, "grad_norm_before_clip", "norm"), [shown]);
  const speed = useMemo(() => columnLines(shown, "tokens_per_second", "speed"), [shown]);
  const open = (x: number) => {
    const [run] = runs;
    const step = run && stepAt(run.metrics, x, along);
    if (run && step) onStep(run.overview.row.name, step);
  };
  const shared = {
    along: AXES[along],
    whole: along !== "time",
    together: "course",
    onPoint: open,
    shownX: along === "time" ? duration : along === "tokens" ? count : whole,
  };
  const steps = metrics[0]?.columns.loss?.count ?? 0;
  if (steps === 0) return <p class="quiet">No step has been taken yet: curves begin with the first.</p>;
  return (
    <div class="curves">
      <div class="whole-width">
        <Curve {...shared} title="Loss" unit="nats per token" lines={loss} log={log} height={310} pins={pinsOf(runs)} onPin={(pin) => onFinding(pin.key)} />
      </div>
      <Curve {...shared} title="Learning rate" unit="" lines={rate} fromZero height={196} />
      <Curve {...shared} title="Gradient norm" unit="before clipping" lines={norm} log={positive(norm)} height={196} />
      <Curve {...shared} title="Throughput" unit="tokens per second" lines={speed} fromZero height={196} />
    </div>
  );
}

function positive(lines: { y: (number | null)[] }[]): boolean {
  return lines.length > 0 && lines.every(({ y }) => y.every((value) => value === null || value > 0));
}

/** The findings of runs at their places along the axis; those from before the first step stand at its beginning. */
function pinsOf(runs: Live[]): Pin[] {
  return runs.flatMap(({ overview, metrics }) =>
    overview.findings.flatMap((finding, at) => {
      const x = placeOf(metrics, finding.step ?? 0);
      const when = finding.step === null ? "before the first step" : `step ${whole(finding.step)}`;
      const key = `${overview.row.name}-${at}`;
      return x === null ? [] : [{ x, key, severity: finding.severity, label: `${finding.severity}, ${when}: ${finding.rule}. ${finding.says}` }];
    }),
  );
}
