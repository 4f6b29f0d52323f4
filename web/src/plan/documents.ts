// What the server says of a plan: figures by section, each with the equation that computed it.

export interface PlanFigure {
  name: string;
  value: number;
  unit: string;
  /** As one reads it: 12.1 GB. */
  shown: string;
  equation: string;
  readable: string;
  /** What was put into the equation; a name may be that of another figure. */
  numbers: Record<string, number>;
  source: string;
  note: string;
  why: string[];
}

export interface PlanDocument {
  name: string;
  sections: { title: string; figures: PlanFigure[] }[];
  fits: boolean | null;
  advice: string[];
  notes: string[];
  limited: string;
}

export interface PlanOption {
  name: string;
  kind: "number" | "whole" | "word" | "choice";
  default: number | string | null;
  choices: string[];
  about: string;
}

/** L(N, D) = E + A / N^alpha + B / D^beta, in nats per token. */
export interface Law {
  name: string;
  source: string;
  E: number;
  A: number;
  B: number;
  alpha: number;
  beta: number;
}

export interface PlanForm {
  names: string[];
  devices: string[];
  options: PlanOption[];
  laws: Law[];
}

export type Options = Record<string, string | number>;

export interface PlanRequest {
  what: string | null;
  options: Options;
  compute: number | null;
  params: number | null;
}
