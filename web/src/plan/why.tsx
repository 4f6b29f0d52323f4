// Why a figure is what it is: its equation, what was put in, where that comes from; figures lead to figures.
import { digits, whole } from "../format";
import type { PlanDocument, PlanFigure } from "./documents";

interface Props {
  plan: PlanDocument;
  name: string | null;
  onName: (name: string | null) => void;
}

export function Why({ plan, name, onName }: Props) {
  const figures = plan.sections.flatMap((section) => section.figures);
  const figure = figures.find((one) => one.name === name);
  if (!figure) return null;
  return (
    <aside class="why" aria-label={`why ${figure.name}`} aria-live="polite">
      <h3>
        {figure.name} <b class="number">{figure.shown}</b>
        <button type="button" class="save-as" onClick={() => onName(null)}>
          close
        </button>
      </h3>
      {figure.equation !== figure.name && <p class="equation">= {figure.readable}</p>}
      <dl class="put-in">
        {Object.entries(figure.numbers).map(([symbol, value]) => {
          const from = origin(figures, figure, symbol, value);
          return (
            <div key={symbol}>
              <dt>{symbol}</dt>
              <dd class="number">
                {from ? (
                  <button type="button" class="plain" onClick={() => onName(from.name)}>
                    {from.shown}
                  </button>
                ) : (
                  plainly(value)
                )}
              </dd>
            </div>
          );
        })}
      </dl>
      <p class="number">
        = {plainly(figure.value)} {figure.unit}
      </p>
      {figure.note && <p>{figure.note}</p>}
      {figure.source && <p class="quiet">source: {figure.source}</p>}
    </aside>
  );
}

/** The figure that a number put in is: one of its section by that name, or of the plan by that ending and value. */
export function origin(figures: PlanFigure[], figure: PlanFigure, symbol: string, value: number): PlanFigure | undefined {
  const section = figure.name.slice(0, figure.name.lastIndexOf("."));
  return (
    figures.find((one) => one.name === `${section}.${symbol}` && one !== figure) ??
    figures.find((one) => one !== figure && one.value === value && (one.name.endsWith(`.${symbol}`) || (typeof value === "number" && value > 1e6)))
  );
}

function plainly(value: number): string {
  return Number.isInteger(value) ? whole(value) : digits(value, 10).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}
