// The way from a point of a curve to its step: opened at once where it was recorded, replayed where it was not.
import { useSignal } from "@preact/signals";

import { print } from "../address";
import { whole } from "../format";
import { Waiting } from "../parts/form";
import { finished, type Job, reasonOf } from "../service";
import type { Api } from "../source/source";
import type { Live } from "./live";

interface Chosen {
  run: string;
  step: number;
}

interface Props {
  api: Api;
  runs: Live[];
  chosen: Chosen | null;
  onChosen: (chosen: Chosen | null) => void;
}

export function OpenStep({ api, runs, chosen, onChosen }: Props) {
  const doing = useSignal<{ doing: string; share: number | null } | null>(null);
  const failed = useSignal<string | null>(null);
  const name = chosen?.run ?? runs[0]?.overview.row.name ?? "";
  const overview = runs.find((run) => run.overview.row.name === name)?.overview;
  if (!overview) return null;
  const { opened_first: first, opened_last: last, recorded } = overview;
  const saved = overview.checkpoints.at(-1);
  const step = chosen?.step ?? recorded.at(-1) ?? last;
  if (step === null || step === undefined) return <p class="quiet">No step of {name} can be opened yet.</p>;
  const here = recorded.includes(step);
  const within = first !== null && last !== null && step >= first && step <= last;
  const address = `#/${encodeURIComponent(name)}/${step}`;
  const replay = async () => {
    failed.value = null;
    doing.value = { doing: `asking for step ${step}`, share: null };
    try {
      const job = await api.post<Job>(`api/runs/${encodeURIComponent(name)}/steps/${step}/record`, {});
      await finished(api, job, (said, share) => (doing.value = { doing: said, share }));
      location.hash = address;
    } catch (error) {
      failed.value = reasonOf(error);
    }
    doing.value = null;
  };
  return (
    <section class="open-step" aria-labelledby="open-step">
      <h2 id="open-step">Open a step</h2>
      <p class="quiet">Click a point of a curve, or name a step.</p>
      <div class="line-up">
        <label class="field">
          <span>step of {name}</span>
          <input
            type="number"
            value={step}
            min={first ?? undefined}
            max={last ?? undefined}
            onInput={(event) => {
              const value = event.currentTarget.valueAsNumber;
              if (Number.isInteger(value)) onChosen({ run: name, step: value });
            }}
          />
        </label>
        {here && (
          <a class="button" href={address}>
            open step {whole(step)}
          </a>
        )}
        {here && <a href={`#/what-if/${encodeURIComponent(name)}/${step}`}>what if something of it were changed</a>}
        {!here && within && !doing.value && (
          <button type="button" onClick={() => void replay()}>
            replay step {whole(step)} and open it
          </button>
        )}
        {!here && !within && <span class="quiet">steps {first === null ? "of this run cannot be replayed" : `${whole(first)} to ${whole(last)} can be opened`}</span>}
      </div>
      {doing.value && <Waiting {...doing.value} />}
      {failed.value && <p role="alert">{failed.value}</p>}
      {saved !== undefined && (
        <p class="quiet">
          <a href={print({ view: "compare", a: `${name}@${saved}`, b: `${name}@${saved}:transformers` })}>the checkpoint after step {whole(saved)}, here and in transformers</a>
        </p>
      )}
      {recorded.length > 0 && (
        <p class="quiet">
          recorded:{" "}
          {recorded.slice(-12).map((one) => (
            <a key={one} href={`#/${encodeURIComponent(name)}/${one}`}>
              {whole(one)}
            </a>
          ))}
        </p>
      )}
    </section>
  );
}
