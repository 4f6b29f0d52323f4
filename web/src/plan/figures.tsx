// Every figure of a plan, by section.
import type { PlanDocument } from "./documents";

export function Figures({ plan, onWhy }: { plan: PlanDocument; onWhy: (name: string) => void }) {
  return (
    <section aria-labelledby="figures">
      <h2 id="figures">Every figure</h2>
      {plan.sections.map(({ title, figures }) => (
        <details key={title} class="figures">
          <summary>
            <h3>{title}</h3> <span class="quiet">{figures.length} figures</span>
          </summary>
          <div class="scroll" tabIndex={0} role="region" aria-label={`figures: ${title}`}>
            <table>
              <tbody>
                {figures.map((figure) => (
                  <tr key={figure.name}>
                    <th scope="row">{figure.name}</th>
                    <td class="number">
                      <button type="button" class="plain" aria-label={`why ${figure.name} is ${figure.shown}`} onClick={() => onWhy(figure.name)}>
                        {figure.shown}
                      </button>
                    </td>
                    <td class="quiet">{figure.equation === figure.name ? "given" : figure.readable}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </details>
      ))}
    </section>
  );
}
