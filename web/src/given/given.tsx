// One result as a notebook's kernel holds it: a plan, a finding, or a comparison that lies in no folder of runs.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";

import type { Address } from "../address";
import { Shown as Comparison } from "../compare/compare";
import type { GivenDocument, PlanDocument } from "../documents";
import type { ViewProps } from "../page";
import { Awaited } from "../parts/form";
import { Figures } from "../plan/figures";
import { Verdict } from "../plan/plan";
import { Stack } from "../plan/stack";
import { Why } from "../plan/why";
import { Finding } from "../runs/findings";
import { apiOf, useAnswer } from "../service";
import { PairSource } from "../source/pair";

export function Given({ source }: ViewProps<Extract<Address, { view: "given" }>>) {
  const api = apiOf(source);
  const answer = useAnswer<GivenDocument>(api, "api/given");
  const arrays = useMemo(() => new PairSource(api, "api/given", {}), [api]);
  return (
    <Awaited answer={answer.value}>
      {({ plan, finding, comparison }) => (
        <>
          {comparison && <Comparison found={comparison} source={arrays} />}
          {plan && <Plan plan={plan} />}
          {finding && <Finding finding={finding} />}
        </>
      )}
    </Awaited>
  );
}

/** What was planned, without the form: its configuration has no name that could be asked again. */
function Plan({ plan }: { plan: PlanDocument }) {
  const why = useSignal<string | null>(null);
  const ask = (name: string | null) => (why.value = name);
  return (
    <div class="plan">
      <Verdict plan={plan} onWhy={ask} />
      <Stack plan={plan} onWhy={ask} />
      <Why plan={plan} name={why.value} onName={ask} />
      <Figures plan={plan} onWhy={ask} />
    </div>
  );
}
