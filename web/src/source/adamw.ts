// The first update of one weight by AdamW, written out. The lines are the rule's own, their slots are filled here.
import { general } from "../numbers";

export interface Update {
  /** As Python's rule has them: {m_hat:.8g} is the number m_hat in eight digits. */
  lines: string[];
  beta1: number;
  beta2: number;
  eps: number;
  weight_decay: number;
  rate: number;
  t: number;
  norm: number;
  max_grad_norm: number | null;
}

/** What is remembered after the first update: m and v of one weight, and its gradient as clipped. */
export function moments({ beta1, beta2, norm, max_grad_norm: limit }: Update, gradient: number) {
  const scale = limit === null ? 1 : Math.min(1, limit / (norm + 1e-6));
  const g = gradient * scale;
  return { scale, g, m: (1 - beta1) * g, v: (1 - beta2) * g * g };
}

/** Lines of the update of one weight, nothing being remembered of earlier gradients. */
export function adamw(update: Update, theta: number, gradient: number, decayed: boolean, after: number): string[] {
  const { beta1, beta2, eps, rate, t, norm, max_grad_norm: limit } = update;
  const { scale, g, m, v } = moments(update, gradient);
  const decay = decayed ? update.weight_decay : 0;
  const [left1, left2] = [1 - beta1, 1 - beta2];
  const m_hat = m / (1 - beta1 ** t);
  const v_hat = v / (1 - beta2 ** t);
  const multiplier = 1 / (Math.sqrt(v_hat) + eps);
  const effective = rate * multiplier;
  const step = effective * m_hat;
  const shrunk = theta * (1 - rate * decay);
  const slots: Record<string, number> = {
    theta_before: theta, theta: shrunk, gradient: g, g, decay, rate, t, m, v, m_hat, v_hat, multiplier, effective, step,
    m_before: 0, v_before: 0, beta1_left: left1, beta2_left: left2, parameter: shrunk - step,
    "rule.beta1": beta1, "rule.beta2": beta2, "rule.eps": eps,
  };
  const why =
    scale < 1 ? `the global norm ${general(norm)} exceeds ${general(limit ?? 0)}` : `not clipped, the norm is ${general(norm)}`;
  const lines = update.lines.filter((line) => decay || !line.includes("{decay:"));
  return [
    `g = ${general(gradient, 8)} · ${general(scale, 8)} = ${general(g, 8)}   ${why}`,
    ...lines.map((line) =>
      line.replace(/\{([\w.]+)(?::(?:\.(\d+))?g)?\}/g, (_, name: string, digits?: string) =>
        general(slots[name] ?? NaN, digits ? Number(digits) : 6),
      ),
    ),
    `the engine has ${general(after, 8)}`,
  ];
}
