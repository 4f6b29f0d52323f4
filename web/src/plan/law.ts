// L(N, D) = E + A / N^alpha + B / D^beta. Source: Hoffmann et al. 2022, eq. 2 and 4, arXiv:2203.15556.
import type { Law } from "./documents";

/** Nats per token. */
export function lossOf({ E, A, B, alpha, beta }: Law, size: number, tokens: number): number {
  return E + A / size ** alpha + B / tokens ** beta;
}

/** Tokens with which a size reaches a loss; not a number where it never does. */
export function tokensFor({ E, A, B, alpha, beta }: Law, loss: number, size: number): number {
  return (B / (loss - E - A / size ** alpha)) ** (1 / beta);
}

/** Parameters and tokens with the least loss for 6 N D FLOPs. */
export function bestFor({ A, B, alpha, beta }: Law, compute: number): [number, number] {
  const ratio = ((alpha * A) / (beta * B)) ** (1 / (alpha + beta));
  const size = ratio * (compute / 6) ** (beta / (alpha + beta));
  return [size, compute / 6 / size];
}
