// A prompt, what comes next, and how the choice is made; with one model, or two beside each other.
import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";

import type { Address } from "../address";
import type { ViewProps } from "../page";
import { Choice, Waiting } from "../parts/form";
import type { RunList } from "../runs/documents";
import { apiOf, floats, reasonOf, useAnswer } from "../service";
import type { Api } from "../source/source";
import { Distribution } from "./distribution";
import type { PlayDocument, PlayRequest, Token } from "./documents";
import { Heads, type Head } from "./heads";
import { divergence, distribution, drawn, PLAIN, type Sampling, type Scores, scoresOf } from "./sampling";
import { Sliders } from "./sliders";
import { Tokens } from "./tokens";

const SOME = 20;

export function Play({ source, address }: ViewProps<Extract<Address, { view: "play" }>>) {
  return <Table key={address.model} api={apiOf(source)} model={address.model} query={new URLSearchParams(address.query)} />;
}

/** What a model says after some tokens. */
interface Said {
  document: PlayDocument;
  scores: Scores;
}

function Table({ api, model, query }: { api: Api; model: string; query: URLSearchParams }) {
  const runs = useAnswer<RunList>(api, "api/runs").value;
  const names = runs.state === "here" ? runs.value.runs.filter((run) => run.step > 0).map((run) => run.name) : [];
  const first = useSignal(model);
  const second = useSignal(query.get("with") ?? "");
  const prompt = useSignal(query.get("prompt") ?? "def ");
  const asked = useSignal<{ prompt: string; tokens: number[] | null }>({ prompt: prompt.value, tokens: null });
  const whole = useSignal<PlayDocument["prompt"] | null>(null);
  const sampling = useSignal<Sampling>(PLAIN);
  const head = useSignal<Head | null>(null);
  const left = useSignal(0);
  useEffect(() => {
    if (!first.value && names[0]) first.value = names[0];
  }, [names[0]]);
  const a = useSaid(api, first.value, asked.value);
  const b = useSaid(api, second.value, asked.value);
  const said = a.said;
  const shown = useMemo(() => said && distribution(said.scores, sampling.value), [said, sampling.value]);

  useEffect(() => {
    if (said) whole.value = longer(whole.value, said.document.prompt);
  }, [said]);
  useEffect(() => {
    const words = new URLSearchParams({ prompt: prompt.value, ...(second.value ? { with: second.value } : {}) });
    history.replaceState(null, "", `#/play/${encodeURIComponent(first.value)}?${words}`);
  }, [first.value, second.value, asked.value]);
  const append = (id: number): void => {
    if (!said) return;
    asked.value = { prompt: "", tokens: [...said.document.prompt.map((token) => token.id), id] };
  };
  const draw = (): void => {
    if (said && shown) append(drawn(said.scores, shown, Math.random()));
  };
  useEffect(() => {
    if (!said || left.value === 0) return;
    left.value--;
    if (said.document.prompt.length >= said.document.context_length) left.value = 0;
    else draw();
  }, [said]);
  const start = (): void => {
    [whole.value, left.value] = [null, 0];
    asked.value = { prompt: prompt.value, tokens: null };
  };
  const models = [...new Set([first.value, second.value, ...names].filter(Boolean))];
  const tokens = whole.value ?? said?.document.prompt ?? [];
  const at = (said?.document.prompt.length ?? 0) - 1;
  if (runs.state === "here" && !models.length) return <p>No run has a model to play with yet: <code>limpid train</code> makes one.</p>;
  return (
    <>
      <h1>Play</h1>
      <form
        class="prompt"
        onSubmit={(event) => {
          event.preventDefault();
          start();
        }}
      >
        <label class="field">
          <span>prompt</span>
          <textarea
            rows={3}
            value={prompt.value}
            spellcheck={false}
            onInput={(event) => (prompt.value = event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && start()}
          />
        </label>
        <div class="line-up">
          <Choice label="model" value={first.value} choices={models} onValue={(value) => (first.value = value)} />
          <Choice label="beside it" value={second.value} choices={[["", "nothing"], ...models.map((name): [string, string] => [name, name])]} onValue={(value) => (second.value = value)} />
          <Checkpoint label="after step" model={first.value} onModel={(value) => (first.value = value)} />
          <button type="submit">read the prompt</button>
        </div>
      </form>
      {a.failed && <p role="alert">{a.failed}</p>}
      {!said && !a.failed && <Waiting doing={`loading ${first.value || "a model"}`} share={null} />}
      {said && shown && (
        <>
          <Coloured
            head={head}
            said={said.document}
            tokens={tokens}
            at={at}
            onToken={(place) => {
              left.value = 0;
              asked.value = { prompt: "", tokens: tokens.slice(0, place + 1).map((token) => token.id) };
            }}
          />
          <div class="line-up">
            <button type="button" onClick={draw}>draw one token</button>
            <button
              type="button"
              onClick={() => {
                left.value = left.value ? 0 : SOME;
                if (left.value) {
                  left.value--;
                  draw();
                }
              }}
            >
              {left.value ? "stop" : `draw ${SOME}`}
            </button>
            <button type="button" disabled={at < 1} onClick={() => (asked.value = { prompt: "", tokens: tokens.slice(0, at).map((token) => token.id) })}>
              one back
            </button>
            <span class="quiet">
              {at + 1} of {said.document.context_length} positions
            </span>
          </div>
          <div class="table">
            <section aria-label="next token">
              <Sliders sampling={sampling.value} vocabulary={said.scores.logits.length} onSampling={(value) => (sampling.value = value)} />
              <div class={second.value ? "beside" : ""}>
                <Distribution said={said.document} shown={shown} scores={said.scores} name={first.value} onToken={append} />
                {second.value && <Second other={b} sampling={sampling.value} first={distribution(said.scores, PLAIN).probabilities} name={second.value} onToken={append} />}
              </div>
            </section>
            {said.document.attention && (
              <Heads attention={said.document.attention} tokens={said.document.prompt} chosen={head} />
            )}
          </div>
        </>
      )}
    </>
  );
}

interface ColouredProps {
  head: Signal<Head | null>;
  said: PlayDocument;
  tokens: Token[];
  at: number;
  onToken: (place: number) => void;
}

/** The text, coloured by where a head looks: another head draws this again, and nothing else of the page. */
function Coloured({ head, said, ...rest }: ColouredProps) {
  return <Tokens {...rest} weights={head.value && rest.at >= 0 ? weightsOf(said, head.value) : null} />;
}

function Second({ other, sampling, first, name, onToken }: { other: Asked; sampling: Sampling; first: Float64Array; name: string; onToken: (id: number) => void }) {
  const said = other.said;
  const shown = useMemo(() => said && distribution(said.scores, sampling), [said, sampling]);
  if (other.failed) return <p role="alert">{other.failed}</p>;
  if (!said || !shown) return <Waiting doing={`loading ${name}`} share={null} />;
  return <Distribution said={said.document} shown={shown} scores={said.scores} name={name} onToken={onToken} apart={divergence(first, distribution(said.scores, PLAIN).probabilities)} />;
}

function Checkpoint({ label, model, onModel }: { label: string; model: string; onModel: (model: string) => void }) {
  const [name = "", step = ""] = model.split("@");
  const typed = useSignal(step);
  return (
    <label class="field">
      <span>{label}</span>
      <input
        value={typed.value}
        placeholder="last"
        size={7}
        onInput={(event) => (typed.value = event.currentTarget.value)}
        onChange={() => onModel(typed.value ? `${name}@${typed.value}` : name)}
      />
    </label>
  );
}

interface Asked {
  said: Said | null;
  failed: string | null;
}

/** What a model says; while it thinks, what it said before. */
function useSaid(api: Api, model: string, asked: { prompt: string; tokens: number[] | null }): Asked {
  const answer = useSignal<Asked>({ said: null, failed: null });
  useEffect(() => {
    if (!model) {
      answer.value = { said: null, failed: null };
      return;
    }
    let wanted = true;
    const request: PlayRequest = { model, attention: true, ...(asked.tokens ? { tokens: asked.tokens } : { prompt: asked.prompt }) };
    api.post<PlayDocument>("api/play", request).then(
      (document) => {
        if (wanted) answer.value = { said: { document, scores: scoresOf(floats(document.logits)) }, failed: null };
      },
      (error: unknown) => {
        if (wanted) answer.value = { said: null, failed: reasonOf(error) };
      },
    );
    return () => {
      wanted = false;
    };
  }, [model, asked]);
  return answer.value;
}

/** The tokens that stand there, when an earlier one of them is looked at again. */
function longer(before: PlayDocument["prompt"] | null, now: PlayDocument["prompt"]): PlayDocument["prompt"] {
  const same = before && before.length > now.length && now.every((token, at) => token.id === before[at]?.id);
  return same ? before : now;
}

function weightsOf({ attention }: PlayDocument, { layer, head }: Head): number[] {
  return attention?.[layer]?.[head] ?? [];
}
