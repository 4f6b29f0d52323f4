// A gradient on its way back through random layers: the same numbers as limpid.primer.cases.depth, which a test holds it to.
import { norm } from "./mathematics";

const FACTOR = 48271;
const MODULUS = 2 ** 31 - 1;

/** What may follow the matrix of a layer, with its slope. */
export const BENDS = {
  tanh: { of: Math.tanh, slope: (z: number) => 4 * logistic(2 * z) * logistic(-2 * z) },
  relu: { of: (z: number) => Math.max(0, z), slope: (z: number) => (z > 0 ? 1 : 0) },
  sigmoid: { of: logistic, slope: (z: number) => logistic(z) * logistic(-z) },
  nothing: { of: (z: number) => z, slope: () => 1 },
} as const;

export type Bend = keyof typeof BENDS;

/** Lengths of a gradient of length 1 before any layer, and after each, from the last layer to the first. */
export function gradientNorms(bend: Bend, scale: number, depth: number, added: boolean, width = 16): number[] {
  const { of, slope } = BENDS[bend];
  const random = drawn();
  const entries = Array.from({ length: width }, (_, at) => at);
  const next = () => entries.map(random);
  let h = next();
  const layers = Array.from({ length: depth }, () => {
    const weight = entries.map(next).map((row) => row.map((one) => (scale / Math.sqrt(width)) * one));
    const z = weight.map((row) => row.reduce((sum, one, at) => sum + one * (h[at] ?? 0), 0));
    h = z.map((one, at) => of(one) + (added ? (h[at] ?? 0) : 0));
    return { weight, slopes: z.map(slope) };
  });
  let gradient = entries.map(() => width ** -0.5);
  const found = [norm(gradient)];
  for (const { weight, slopes } of layers.reverse()) {
    const behind = gradient.map((one, at) => one * (slopes[at] ?? 0));
    gradient = gradient.map((one, at) => behind.reduce((sum, bar, row) => sum + bar * (weight[row]?.[at] ?? 0), added ? one : 0));
    found.push(norm(gradient));
  }
  return found;
}

/** Numbers of mean 0 and variance 1, uniform, by Park and Miller's generator. */
function drawn(): () => number {
  let state = 1;
  return () => {
    state = (FACTOR * state) % MODULUS;
    return ((2 * state) / MODULUS - 1) * Math.sqrt(3);
  };
}

function logistic(z: number): number {
  const small = Math.exp(-Math.abs(z));
  return (z < 0 ? small : 1) / (1 + small);
}
