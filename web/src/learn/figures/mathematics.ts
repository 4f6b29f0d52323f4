// What the figures compute: the same numbers as limpid.maths, which a test holds them to.

export type Vector = readonly number[];

export function dot(a: Vector, b: Vector): number {
  return a.reduce((sum, value, at) => sum + value * (b[at] ?? 0), 0);
}

export function norm(a: Vector): number {
  return Math.sqrt(dot(a, a));
}

/** NaN where one of them is all zeros. */
export function cosine(a: Vector, b: Vector): number {
  return dot(a, b) / (norm(a) * norm(b));
}

/** Degrees between two vectors. */
export function angle(a: Vector, b: Vector): number {
  return (Math.acos(Math.max(-1, Math.min(1, cosine(a, b)))) * 180) / Math.PI;
}

/** A vector of two entries as it stands at a position, turned by one radian for each. */
export function turned([right = 0, up = 0]: Vector, position: number): [number, number] {
  const [cosine, sine] = [Math.cos(position), Math.sin(position)];
  return [cosine * right - sine * up, sine * right + cosine * up];
}

/** Probabilities of scores; the temperature is above 0. */
export function softmax(z: Vector, temperature: number): number[] {
  const top = Math.max(...z);
  const weights = z.map((score) => Math.exp((score - top) / temperature));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
}

/** Loss (w − minimum)². */
export function loss(minimum: number, w: number): number {
  return (w - minimum) ** 2;
}

/** The weight before the first step down that loss, and after each. */
export function descent(minimum: number, start: number, rate: number, steps: number): number[] {
  const places = [start];
  for (let step = 0; step < steps; step++) {
    const w = places[step] ?? start;
    places.push(w - rate * 2 * (w - minimum));
  }
  return places;
}
