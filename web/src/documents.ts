// Made by `python -m limpid.view` from the dataclasses in Python; do not edit.

/** A number of a document; what is not finite is a word. */
export type Numeric = number | "nan" | "inf" | "-inf";

/** An array of a recorded step that slices and tiles can be asked of. */
export interface ArrayPlace {
  shape: Array<number>;
  format: string;
  axes: Array<string>;
  kinds: Array<"value" | "gradient" | "exact" | "difference" | "share">;
}

/** An entry that rounding does not explain: the one that lies farthest beyond its bound. */
export interface Beyond {
  index: Array<number>;
  engine: Numeric;
  exact: Numeric;
  bound: Numeric;
  share: Numeric;
  verdict: "beyond";
}

/** One array of the engine against the mathematics, which was given the engine's own inputs. */
export interface Check {
  name: string;
  kind: "run" | "given" | "forward" | "backward" | "update";
  verdict: Holds | NotFinite | Beyond | Unchecked;
  entries: number;
  compared: number;
  worst: Numeric;
  index: Array<number>;
  engine: Numeric;
  expected: Numeric;
  bound: Numeric;
  over: string;
  holds: boolean;
}

/** How many checks of a kind there are, and how many hold. */
export interface Count {
  kind: "run" | "given" | "forward" | "backward" | "update";
  holds: number;
  checks: number;
}

/** One entry, or what one operation passed back to it, written out. */
export interface DerivationDocument {
  operation: string;
  quantity: string;
  equation: string;
  symbols: string;
  numbers: string;
  value: Numeric;
  terms: Array<Term>;
}

/** Everything there is to say about one entry. */
export interface EntryDocument {
  name: string;
  index: Array<number>;
  address: string;
  value: Numeric;
  note: string;
  station: "embedding" | "norm" | "attention" | "mlp" | "logits" | "loss" | "backward" | "update";
  made: DerivationDocument | null;
  roundings_off: Numeric | null;
  came_from: Array<Place>;
  went_to: Array<string>;
  gradient: Numeric | null;
  passed: Array<DerivationDocument>;
  to_tokens: Array<Place>;
  to_loss: Array<Place>;
  weighed_by: Array<Place>;
  update: Array<string>;
}

/** One entry explained, with its equations to show. */
export interface EntryView {
  entry: EntryDocument;
  mathml: Record<string, string>;
}

/** One equation of the catalogue. */
export interface EquationDocument {
  name: string;
  kind: string;
  purpose: string;
  signature: string;
  equation: string;
  adjoint: Array<string>;
  branch: string;
  stages: Array<string>;
  source: string;
  file: string;
  line: number;
}

/** The whole catalogue, with MathML of every line. */
export interface EquationsView {
  equations: Array<EquationDocument>;
  mathml: Record<string, string>;
}

/** Every entry was compared, and rounding explains every difference. */
export interface Holds {
  share: Numeric;
  verdict: "holds";
}

/** One token that the model was to predict. */
export interface LabelDocument {
  row: number;
  position: number;
  text: string;
  nats: Numeric;
}

/** The loss accounted for: which formula, over which tokens, with which weight. */
export interface LossDocument {
  value: Numeric;
  exact: Numeric;
  perplexity: Numeric;
  objective: string;
  formula: string;
  labels: number;
  positions: number;
  weight: Numeric;
  micro_batches: Array<Record<string, unknown>>;
  rows: Array<Array<[string, Numeric | null]>>;
  most_surprising: Array<LabelDocument>;
}

/** Entries that are not finite although everything that they follow from is: an origin. */
export interface NotFinite {
  quantity: string;
  index: Array<number>;
  value: Numeric;
  count: number;
  format: string;
  largest: Numeric;
  exact: Numeric;
  cause: "given" | "overflow" | "intermediate overflow" | "loss scale" | "no value" | "operation";
  explanation: string;
  verdict: "not finite";
}

/** One parameter: its gradient as training used it, and its update. */
export interface ParameterDocument {
  name: string;
  station: "embedding" | "norm" | "attention" | "mlp" | "logits" | "loss" | "backward" | "update";
  block: number | null;
  shape: Array<number>;
  axes: Array<string>;
  decayed: boolean;
  grad_norm: Numeric;
  relative_change: Numeric;
  gradient: Check | null;
  checks: Array<Check>;
}

/** An entry by its address, and its number. */
export interface Place {
  name: string;
  index: Array<number>;
  address: string;
  value: Numeric;
  note: string;
}

/** One quantity of the forward pass: what made it, its numbers, its gradient, and how well both agree. */
export interface QuantityDocument {
  name: string;
  station: "embedding" | "norm" | "attention" | "mlp" | "logits" | "loss" | "backward" | "update";
  block: number | null;
  axes: Array<string>;
  unit: string;
  shape: Array<number>;
  format: string;
  operation: string;
  inputs: Array<string>;
  path: "fast" | "plain";
  arithmetic: string;
  equation: string;
  adjoint: Array<string>;
  branch: string;
  source: string;
  statistics: Statistics;
  flops: number;
  grad_norm: Numeric | null;
  forward: Check;
  backward: Check | null;
  drift: Numeric;
}

/** One update rule and what it moved. */
export interface RuleDocument {
  rule: string;
  equations: Array<string>;
  source: string;
  parameters: Array<string>;
}

/** Whether this is the step that the run took: its batch, what was logged, the checkpoints on both sides. */
export interface RunDocument {
  run: string;
  checks: Array<WrittenCheck>;
  not_compared: Array<string>;
}

/** One stage of the step: its quantities in order; those of backward and update are all of them. */
export interface StationDocument {
  station: "embedding" | "norm" | "attention" | "mlp" | "logits" | "loss" | "backward" | "update";
  block: number | null;
  title: string;
  quantities: Array<string>;
  parameters: Array<string>;
  flops: number;
}

/** An array in five numbers; what is not finite is counted, not averaged. */
export interface Statistics {
  mean: Numeric;
  rms: Numeric;
  smallest: Numeric;
  largest: Numeric;
  not_finite: number;
}

/** One step, redone in float64 and compared, without its arrays. */
export interface StepDocument {
  version: number;
  run: string;
  step: number;
  config: Record<string, unknown>;
  precision: Record<string, string>;
  loss_scale: Numeric;
  written: RunDocument | null;
  verdict: VerdictDocument;
  stations: Array<StationDocument>;
  quantities: Array<QuantityDocument>;
  loss: LossDocument;
  parameters: Array<ParameterDocument>;
  update: UpdateDocument;
}

/** A recorded step: its document, its equations to show, and what arrays it has. */
export interface StepView {
  step: StepDocument;
  mathml: Record<string, string>;
  arrays: Record<string, ArrayPlace>;
  tokens: Array<Array<string>>;
  words: Record<string, string>;
  record_bytes: number;
}

/** What one entry contributed: value = factor × its number. A product of two entries has a term for each of them. */
export interface Term {
  source: Place;
  factor: Numeric | null;
  value: Numeric;
}

/** Some entries follow from numbers that are not finite: there is nothing to compare them with. */
export interface Unchecked {
  why: string;
  share: Numeric | null;
  verdict: "not checked";
}

/** Clipping, learning rate and rules. */
export interface UpdateDocument {
  rules: Array<RuleDocument>;
  number: number;
  learning_rate: Numeric;
  grad_norm_before_clip: Numeric;
  max_grad_norm: Numeric | null;
  clip_scale: Numeric;
  optimizer_values: number;
  checks: Array<Check>;
}

/** What is to be said of the whole step. */
export interface VerdictDocument {
  agrees: boolean;
  verdict: "holds" | "not finite" | "beyond" | "not checked";
  origin: NotFinite | null;
  not_finite: Array<NotFinite>;
  first_disagreement: Check | null;
  checks: number;
  within_bounds: number;
  not_checked: number;
  counts: Array<Count>;
  fast: number;
  plain: number;
  worst: Check;
}

/** The step against one thing that its run wrote down. */
export interface WrittenCheck {
  check: Check;
  written_in: string;
  way_out: string;
}
