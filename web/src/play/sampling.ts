// From logits to what may be drawn, in the order in which limpid's own decoder does it.

export interface Sampling {
  temperature: number;
  /** 0 leaves every token in. */
  topK: number;
  topP: number;
  minP: number;
}

export const PLAIN: Sampling = { temperature: 1, topK: 0, topP: 1, minP: 0 };

/** Scores of the next token, and their order, which no temperature changes. */
export interface Scores {
  logits: Float32Array;
  order: Uint32Array;
}

export function scoresOf(logits: Float32Array): Scores {
  const order = Uint32Array.from(logits, (_, at) => at);
  order.sort((a, b) => (logits[b] ?? 0) - (logits[a] ?? 0) || a - b);
  return { logits, order };
}

export interface Distribution {
  /** By token. */
  probabilities: Float64Array;
  /** How many tokens may be drawn. */
  kept: number;
  /** Bits. */
  entropy: number;
}

/** The distribution that is drawn from. Sources: top-k, Fan et al. 2018; nucleus, Holtzman et al. 2020; min-p, Nguyen et al. 2024. */
export function distribution({ logits, order }: Scores, { temperature, topK, topP, minP }: Sampling): Distribution {
  const probabilities = new Float64Array(logits.length);
  const best = logits[order[0] ?? 0] ?? 0;
  let kept = order.length;
  if (temperature === 0) {
    probabilities[order[0] ?? 0] = 1;
    return { probabilities, kept: 1, entropy: 0 };
  }
  const weights = new Float64Array(order.length);
  for (let place = 0; place < order.length; place++) {
    weights[place] = Math.exp(((logits[order[place] ?? 0] ?? 0) - best) / temperature);
  }
  const total = (): number => weights.subarray(0, kept).reduce((sum, weight) => sum + weight, 0);
  if (topK > 0 && topK < kept) {
    const least = weights[topK - 1] ?? 0;
    kept = topK;
    while (kept < order.length && weights[kept] === least) kept++;
  }
  if (topP < 1) {
    const enough = topP * total();
    let sum = weights[0] ?? 0;
    let count = 1;
    while (count < kept && sum < enough) sum += weights[count++] ?? 0;
    kept = count;
  }
  if (minP > 0) while (kept > 1 && (weights[kept - 1] ?? 0) < minP) kept--;
  const sum = total();
  let entropy = 0;
  for (let place = 0; place < kept; place++) {
    const probability = (weights[place] ?? 0) / sum;
    probabilities[order[place] ?? 0] = probability;
    if (probability > 0) entropy -= probability * Math.log2(probability);
  }
  return { probabilities, kept, entropy };
}

/** The token at which the distribution function passes a number between 0 and 1. */
export function drawn({ order }: Scores, { probabilities, kept }: Distribution, uniform: number): number {
  let sum = 0;
  for (let place = 0; place < kept; place++) {
    sum += probabilities[order[place] ?? 0] ?? 0;
    if (sum > uniform) return order[place] ?? 0;
  }
  return order[kept - 1] ?? 0;
}

/** How far two distributions over one vocabulary are apart: Kullback-Leibler divergence of the second from the first, in bits. */
export function divergence(first: Float64Array, second: Float64Array): number | null {
  if (first.length !== second.length) return null;
  let bits = 0;
  for (let at = 0; at < first.length; at++) {
    const [p, q] = [first[at] ?? 0, second[at] ?? 0];
    if (p > 0) bits += p * Math.log2(p / q);
  }
  return bits;
}
