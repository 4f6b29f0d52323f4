// Which numbers the exercises of a chapter have, as they stand in its address: dot=7, or dot=7@001/400 of a step.

export interface Numbers {
  seed: number;
  /** The step that they are of; null where they are drawn. */
  of: { run: string; step: number } | null;
}

/** The worked model's step, which every server has. */
export const WORKED = { run: "worked", step: 1 };
export const FIRST: Numbers = { seed: 0, of: null };

export function fromQuery(query: string): Map<string, Numbers> {
  const found = new Map<string, Numbers>();
  for (const [name, text] of new URLSearchParams(query)) {
    const [, seed, run, step] = /^(\d{1,9})(?:@(.+)\/(\d+))?$/.exec(text) ?? [];
    if (seed !== undefined) found.set(name, { seed: Number(seed), of: run === undefined ? null : { run, step: Number(step) } });
  }
  return found;
}

export function toQuery(all: Map<string, Numbers>): string {
  const query = new URLSearchParams();
  for (const [name, { seed, of }] of all) if (seed || of) query.set(name, of ? `${seed}@${of.run}/${of.step}` : String(seed));
  return query.toString().replaceAll("%40", "@").replaceAll("%2F", "/");
}

/** Another seed than this one; exercises print it, so it is short. */
export function another(seed: number): number {
  const drawn = 1 + Math.floor(Math.random() * 999_999);
  return drawn === seed ? drawn + 1 : drawn;
}

export function said({ seed, of }: Numbers): string {
  if (of) return of.run === WORKED.run ? `of the worked model's step, place ${seed}` : `of step ${of.step} of ${of.run}, place ${seed}`;
  return seed ? `seed ${seed}` : "the first ones, seed 0";
}
