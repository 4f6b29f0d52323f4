// What the server says of runs.
import type { Figure } from "../format";

export type State = "training" | "finished" | "stopped" | "diverged" | "new" | "unreadable";

export interface RunRow {
  name: string;
  state: State;
  /** Why it cannot be read. */
  why: string;
  step: number;
  max_steps: number;
  loss: Figure;
  eval_loss: Figure;
  num_tokens: number | null;
  tokens_per_second: Figure;
  /** Seconds since 1970. */
  last_written: number;
  tags: string[];
  note: string;
  findings: number;
  curve: { x: number[]; y: Figure[] } | null;
}

export interface RunList {
  folder: string;
  runs: RunRow[];
}

export interface Finding {
  rule: string;
  severity: "notice" | "warning" | "fault";
  step: number | null;
  where: string;
  says: string;
  cause: string;
  fix: string;
  sure: number;
  refuted_by: string;
  evidence: Record<string, unknown>;
}

export interface Sample {
  step: number;
  prompt: string;
  text: string;
}

export type Config = Record<string, Record<string, unknown>>;

export interface RunOverview {
  row: RunRow;
  parameters: number | null;
  best_eval_loss: Figure;
  config: Config;
  columns: string[];
  recorded: number[];
  opened_first: number | null;
  opened_last: number | null;
  checkpoints: number[];
  best_checkpoint: number | null;
  findings: Finding[];
  samples: Sample[];
  after: string;
}

export type Along = "step" | "tokens" | "time";

export interface Column {
  x: number[];
  y: Figure[];
  low: Figure[] | null;
  high: Figure[] | null;
  step: number[];
  count: number;
}

export interface Metrics {
  run: string;
  along: Along;
  columns: Record<string, Column>;
  after: string;
}

/** A line of metrics.jsonl. */
export type Row = Record<string, Figure> & { step: number };
