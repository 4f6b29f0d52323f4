// Made by `python -m limpid.view` from the dataclasses in Python; do not edit.

/** A number of a document; what is not finite is a word. */
export type Numeric = number | "nan" | "inf" | "-inf";

/** A backward pass by hand, held against its forward pass along random directions: ⟨ȳ, J v⟩ = ⟨x̄, v⟩. */
export interface AdjointDocument {
  number: number;
  function: string;
  module: string;
  source: string;
  format: string;
  shapes: Array<Array<number>>;
  verdict: string;
  said: string;
  of: string;
  given: Numeric | null;
  expected: Numeric | null;
  bound: Numeric | null;
  ratio: Numeric | null;
}

/** Whether a recorded step can be taken again, and of what. */
export interface AgainDocument {
  why: string;
  model: string;
  precision: string;
  formats: Array<string>;
}

/** An array of a recorded step that slices and tiles can be asked of. */
export interface ArrayPlace {
  shape: Array<number>;
  format: string;
  axes: Array<string>;
  kinds: Array<"value" | "gradient" | "exact" | "difference" | "share">;
}

/** One of the parts that are asked for, all of them changed. */
export interface AskedDocument {
  module: string;
  format: string;
  adds: Numeric;
}

/** One number before and after what was changed. */
export interface BeforeAfter {
  before: Numeric;
  after: Numeric;
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

/** One operation that PyTorch was asked for. */
export interface CallDocument {
  number: number;
  operation: string;
  phase: string;
  module: string;
  source: string;
  shapes: Array<Array<number>>;
  format: string;
  arithmetic: number;
  check: string;
  why: string;
  wrong: boolean;
  worst: WorstDocument | null;
  ended: string;
  error: Numeric;
  condition: Numeric;
  cause: "wrong" | "badly conditioned" | "low precision" | "";
}

/** One array before and after what was changed. */
export interface ChangedRow {
  name: string;
  station: "embedding" | "norm" | "attention" | "mlp" | "logits" | "loss" | "backward" | "update";
  block: number | null;
  kind: "forward" | "backward" | "update";
  shape: Array<number>;
  axes: Array<string>;
  relative: Numeric;
  largest: Numeric;
  index: Array<number>;
  before: Numeric;
  after: Numeric;
  not_finite: number;
}

/** A part of a chapter. */
export interface ChapterPart {
  kind: "text" | "equation" | "example" | "exercise" | "figure";
  html: string;
  exercise: string | null;
}

/** A chapter as the contents name it. */
export interface ChapterRow {
  name: string;
  number: number;
  title: string;
  purpose: string;
  minutes: number;
  exercises: Array<string>;
}

/** A chapter to read. */
export interface ChapterView {
  row: ChapterRow;
  opens: string;
  parts: Array<ChapterPart>;
  before: ChapterRow | null;
  after: ChapterRow | null;
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

/** A token that may come next. */
export interface Choice {
  id: number;
  text: string;
  logit: number;
  probability: number;
}

/** One column of metrics, in few enough points to draw: the extremes of each stretch, and what is not finite. */
export interface Column {
  x: Array<number>;
  y: Array<Numeric>;
  low: Array<Numeric> | null;
  high: Array<Numeric> | null;
  step: Array<number>;
  count: number;
}

/** Two recorded steps, checkpoints, runs or variants of one computation, held against each other. */
export interface ComparedDocument {
  a: string;
  b: string;
  kind: "steps" | "checkpoints" | "runs" | "variants";
  options: Array<OptionDifference>;
  same_batch: boolean | null;
  loss: Losses | null;
  rows: Array<ComparedRow>;
  bounds: "here" | "to come" | "none";
  alone: Array<string>;
  notes: Array<string>;
}

/** One array of both. */
export interface ComparedRow {
  name: string;
  station: "embedding" | "norm" | "attention" | "mlp" | "logits" | "loss" | "backward" | "update";
  block: number | null;
  kind: "forward" | "backward" | "update" | "weight";
  shape: Array<number>;
  axes: Array<string>;
  relative: Numeric;
  largest: Numeric;
  index: Array<number>;
  a: Numeric;
  b: Numeric;
  bound: Numeric | null;
  share: Numeric | null;
  not_finite: number;
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

/** Why there is no answer, in one line. */
export interface ErrorDocument {
  error: string;
  missing: "record" | "document" | "exact" | null;
}

/** Which array is to be redone in float64. */
export interface ExactQuestion {
  name: string;
}

/** An exercise with its numbers. */
export interface ExerciseView {
  exercise: string;
  seed: number;
  question: string;
  hints: Array<string>;
  solution: string;
  own: boolean;
  where: string;
  entry: string | null;
}

/** One thing that is wrong, or odd enough to know. */
export interface Finding {
  rule: string;
  severity: "notice" | "warning" | "fault";
  step: number | null;
  where: string;
  says: string;
  cause: string;
  fix: string;
  meant: string;
  sure: Numeric;
  refuted_by: string;
  evidence: Record<string, unknown>;
}

/** The doctor's findings of a run that point into one of its steps. */
export interface FindingsView {
  findings: Array<PlacedFinding>;
}

/** What other formats of some operations would do to the loss: foretold and tried; every module by itself. */
export interface FormatsDocument {
  loss: Numeric;
  asked: Record<string, string>;
  predicted: PredictedDocument | null;
  parts: Array<AskedDocument>;
  tried: Numeric | null;
  holds: boolean | null;
  rows: Array<FormatsRow>;
}

/** Patterns of modules and the formats that they are to be tried in; of none, every module by itself. */
export interface FormatsQuestion {
  asked: Record<string, string>;
}

/** A module by itself in each format. */
export interface FormatsRow {
  module: string;
  formats: Record<string, PredictedDocument>;
  narrowest: string;
}

/** One result that a notebook's kernel holds: which it is, the others are null. */
export interface GivenDocument {
  plan: PlanDocument | null;
  finding: Finding | null;
  comparison: ComparedDocument | null;
}

/** What is said to an answer. */
export interface GradeDocument {
  outcome: "right" | "rounded" | "slip" | "wrong";
  note: string;
  says: string;
}

/** An answer, and the exercise, a longer one perhaps, and the numbers that it is to. */
export interface GradeQuestion {
  exercise: string;
  answer: string;
  seed?: number;
  run?: string | null;
  step?: number | null;
  tried?: number;
}

/** By how much rounding moved a number of the gradient, and what each call added. */
export interface GradientDocument {
  of: string;
  engine: Numeric;
  exact: Numeric | null;
  error: Numeric;
  beyond: Numeric;
  bent: Array<string>;
  cancels: boolean;
  unknown: number;
  calls: Array<number>;
  errors: Array<Numeric>;
}

/** Every entry was compared, and rounding explains every difference. */
export interface Holds {
  share: Numeric;
  verdict: "holds";
}

/** Work that takes long, and how far it is. */
export interface JobDocument {
  job: string;
  what: string;
  state: "running" | "done" | "failed";
  doing: string;
  done: number;
  total: number | null;
  error: string;
}

/** One token that the model was to predict. */
export interface LabelDocument {
  row: number;
  position: number;
  text: string;
  nats: Numeric;
}

/** The tags and the note that a run is to have. */
export interface LabelsQuestion {
  tags?: Array<string>;
  note?: string;
}

/** Every chapter, in the order in which they are read, and the longer exercises. */
export interface LearnContents {
  chapters: Array<ChapterRow>;
  longer: Array<PuzzleRow>;
}

/** What the residual stream says of the next token at one position after one block. */
export interface LensCell {
  likeliest: Array<LensToken>;
  target: Numeric | null;
  rank: number | null;
  kl: Numeric;
}

/** The residual stream after one block, read out. */
export interface LensRow {
  name: string;
  title: string;
  cells: Array<LensCell>;
}

/** A token that would come next. */
export interface LensToken {
  id: number;
  text: string;
  probability: Numeric;
}

/** What would be predicted if the residual stream ended after each block: the logit lens of one row of the batch. */
export interface LensView {
  row: number;
  first: number;
  positions: number;
  targets: Array<string | null>;
  layers: Array<LensRow>;
}

/** An entry of an exercise's own trace, written out with its numbers, and what was recorded. */
export interface Look {
  entry: string;
  written: string;
}

/** The loss accounted for: which formula, over which tokens, with which weight. */
export interface LossDocument {
  value: Numeric;
  exact: Numeric;
  error: Numeric;
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

/** Nats per label of both. */
export interface Losses {
  a: Numeric;
  b: Numeric;
}

/** Columns of a run's metrics along one axis. */
export interface MetricsDocument {
  run: string;
  along: "step" | "tokens" | "time";
  columns: Record<string, Column>;
  after: string;
}

/** A module with what came of its calls, and its parts. */
export interface ModuleDocument {
  name: string;
  path: string;
  alike: number;
  forward: Array<string>;
  calls: number;
  unchecked: number;
  wrong: number;
  share: Numeric | null;
  worst: number | null;
  error: Numeric;
  modules: Array<ModuleDocument>;
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

/** An option that two runs do not have in common. */
export interface OptionDifference {
  name: string;
  a: unknown;
  b: unknown;
}

/** An entry, or the norm of an array, over the recorded steps of a run that have it. */
export interface OverSteps {
  run: string;
  name: string;
  is_norm: boolean;
  points: Array<StepPoint>;
  left: number;
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

/** A finding of the doctor, and where in a step it points. */
export interface PlacedFinding {
  number: number;
  finding: Finding;
  station: string;
  name: string | null;
  index: Array<number>;
}

/** What a model costs. */
export interface PlanDocument {
  name: string;
  sections: Array<PlanSection>;
  fits: boolean | null;
  advice: Array<string>;
  notes: Array<string>;
  limited: string;
}

/** One planned number with what it follows from. */
export interface PlanFigure {
  name: string;
  value: number;
  unit: string;
  shown: string;
  equation: string;
  readable: string;
  numbers: Record<string, number>;
  source: string;
  note: string;
  why: Array<string>;
}

/** What may be asked of the planner. */
export interface PlanForm {
  names: Array<string>;
  devices: Array<string>;
  options: Array<PlanOption>;
  laws: Array<PlanLaw>;
}

/** L(N, D) = E + A / N^alpha + B / D^beta, nats per token: what curves of equal loss are drawn from. */
export interface PlanLaw {
  name: string;
  source: string;
  E: number;
  A: number;
  B: number;
  alpha: number;
  beta: number;
}

/** One way to divide a step among the devices. */
export interface PlanLayout {
  zero: number;
  tensor: number;
  pipeline: number;
  recompute: string;
  gradient_accumulation_steps: number;
  replicas: number;
  memory: number;
  fits: boolean | null;
  step: number | null;
  per_row: number | null;
}

/** Every way, those that fit first, the fastest of them first. */
export interface PlanLayouts {
  layouts: Array<PlanLayout>;
}

/** One field of the form. */
export interface PlanOption {
  name: string;
  kind: "number" | "whole" | "word" | "choice";
  default: unknown;
  choices: Array<string>;
  about: string;
}

/** What is planned: a published model or a run; of nothing named, the best size for a number. */
export interface PlanQuestion {
  what?: string | null;
  options?: Record<string, unknown> | null;
  compute?: number | null;
  params?: number | null;
}

/** Figures that belong together. */
export interface PlanSection {
  title: string;
  figures: Array<PlanFigure>;
}

/** What a model says of the next token. Temperature, top-k and top-p are moved in the page, on the exact logits. */
export interface PlayDocument {
  model: string;
  prompt: Array<PlayToken>;
  next: Array<Choice>;
  rest: number;
  entropy: number;
  logits: string;
  attention: Array<Array<Array<number>>> | null;
  context_length: number;
}

/** What a model is to go on from: a prompt, or tokens in its place. */
export interface PlayQuestion {
  model: string;
  prompt?: string;
  tokens?: Array<number> | null;
  attention?: boolean;
}

/** A token that a model was given, and how likely it was after those before it. */
export interface PlayToken {
  id: number;
  text: string;
  probability: number | null;
}

/** A curve in few points. */
export interface Points {
  x: Array<number>;
  y: Array<Numeric>;
}

/** What an exercise has come to, here and in the terminal. */
export interface Practice {
  right: number;
  wrong: number;
  due: boolean;
}

/** Every exercise that was tried. */
export interface PracticeView {
  exercises: Record<string, Practice>;
}

/** Every quantity and gradient is rounded to a format. */
export interface PrecisionChange {
  kind: "precision";
  format: string;
}

/** A change of the loss that is foretold. */
export interface PredictedDocument {
  calls: number;
  change: Numeric;
  at_most: Numeric;
  deviation: Numeric;
  is_value: boolean;
  is_changed: boolean;
}

/** A longer exercise, which belongs to no one chapter. */
export interface PuzzleRow {
  name: string;
  purpose: string;
}

/** A longer exercise with the numbers of its seed; an answer is the number of a choice, from 1 on. */
export interface PuzzleView {
  puzzle: string;
  purpose: string;
  seed: number;
  asked: string;
  choices: Array<string>;
  hints: Array<string>;
  solution: string;
  opens: string;
  looks: Array<Look>;
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
  error: Numeric | null;
}

/** The learning rate is another. */
export interface RateChange {
  kind: "rate";
  value: number;
}

/** A step of any PyTorch model, every call done again in NumPy float64. */
export interface RecordingDocument {
  version: number;
  title: string;
  fed: string;
  loss: Numeric | null;
  parameters: number;
  verdict: "holds" | "beyond rounding" | "not the adjoint" | "compiled otherwise" | "not finite" | "not checked";
  where: string;
  origins: Array<number>;
  checked: Numeric;
  checked_calls: number;
  arithmetic_calls: number;
  moved_calls: number;
  drawn_calls: number;
  wrong: Array<number>;
  nearest: number | null;
  unchecked: Array<UncheckedDocument>;
  error: Numeric;
  modules: ModuleDocument;
  folded: ModuleDocument;
  calls: Array<CallDocument>;
  adjoints: Array<AdjointDocument>;
  gradients: Array<GradientDocument>;
  regions: Array<RegionDocument>;
}

/** Compiled code, which ran as it was written, and beside as compiled: results and gradients of both. */
export interface RegionDocument {
  name: string;
  module: string;
  source: string;
  calls: number;
  verdict: string;
  said: string;
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

/** Every run of a folder, the one that was written to last first. */
export interface RunList {
  folder: string;
  runs: Array<RunRow>;
  recordings: Array<string>;
}

/** One run: how it stands, what it was configured to be, what is left of it. */
export interface RunOverview {
  row: RunRow;
  parameters: number | null;
  best_eval_loss: Numeric | null;
  config: Record<string, Record<string, unknown>>;
  columns: Array<string>;
  recorded: Array<number>;
  opened_first: number | null;
  opened_last: number | null;
  checkpoints: Array<number>;
  best_checkpoint: number | null;
  findings: Array<Finding>;
  samples: Array<Sample>;
  after: string;
}

/** A run as the list shows it: read from the ends of its files, so that long runs cost no more than short ones. */
export interface RunRow {
  name: string;
  state: "training" | "finished" | "stopped" | "diverged" | "new" | "unreadable";
  why: string;
  step: number;
  max_steps: number;
  loss: Numeric | null;
  eval_loss: Numeric | null;
  num_tokens: number | null;
  tokens_per_second: Numeric | null;
  last_written: number;
  tags: Array<string>;
  note: string;
  findings: number;
  curve: Points;
}

/** What the model made of a prompt after a step. */
export interface Sample {
  step: number;
  prompt: string;
  text: string;
}

/** A sheet of exercises to print. */
export interface SheetView {
  style: string;
  html: string;
}

/** What came of an exercise, to be kept with what was answered in the terminal. */
export interface SittingQuestion {
  exercise: string;
  tries: Array<string>;
  seed?: number;
  run?: string | null;
  step?: number | null;
  hints?: number;
  gave_up?: boolean;
}

/** How far a run is. */
export interface StateDocument {
  state: "training" | "finished" | "stopped" | "diverged" | "new" | "unreadable";
  step: number;
  max_steps: number;
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

/** A number of one recorded step. */
export interface StepPoint {
  step: number;
  value: Numeric;
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

/** One token of the batch, or one target, is another. */
export interface TokenChange {
  kind: "token" | "target";
  row: number;
  position: number;
  token: number;
}

/** Some entries follow from numbers that are not finite: there is nothing to compare them with. */
export interface Unchecked {
  why: string;
  share: Numeric | null;
  verdict: "not checked";
}

/** Calls of one operation that were not done again, and why. */
export interface UncheckedDocument {
  operation: string;
  why: string;
  calls: number;
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

/** Two variants that are to be compared, RUN@STEP:WORDS. */
export interface VariantsQuestion {
  a: string;
  b: string;
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

/** One query sees one key, or does not. */
export interface VisibleChange {
  kind: "visible";
  query: number;
  key: number;
  see: boolean;
}

/** One weight has another value. */
export interface WeightChange {
  kind: "weight";
  entry: string;
  value: number;
}

/** A recorded step done again in float64, once as it was and once with something changed. */
export interface WhatIfDocument {
  result: string;
  loss: BeforeAfter;
  grad_norm: BeforeAfter;
  rows: Array<ChangedRow>;
}

/** A recorded step, and what is to be another of it. */
export interface WhatIfQuestion {
  run: string;
  step: number;
  changes: Array<WeightChange | TokenChange | RateChange | VisibleChange | PrecisionChange>;
}

/** The entry of a call's results that is furthest off, by its bound. */
export interface WorstDocument {
  share: Numeric;
  output: number;
  index: Array<number>;
  engine: Numeric;
  expected: Numeric;
  bound: Numeric;
}

/** The step against one thing that its run wrote down. */
export interface WrittenCheck {
  check: Check;
  written_in: string;
  way_out: string;
}
