// The views that a server answers, or a notebook's kernel. A new view is a folder and a line here; one that is seldom the
// first comes later, as a script of its own.
import { Equations } from "./equations/equations";
import type { Link, Views } from "./page";
import { later } from "./parts/later";
import { Play } from "./play/play";
import { Runs } from "./runs/list";
import { Run } from "./runs/run";
import { Step } from "./step/step";
import "./style/views.css";
import "./style/learn.css";
import "./style/recording.css";

export const links: Link[] = [
  { to: { view: "runs" }, text: "runs" },
  { to: { view: "play", model: "", query: "" }, text: "play" },
  { to: { view: "plan", query: "" }, text: "plan" },
  { to: { view: "compare", a: "", b: "" }, text: "compare" },
  { to: { view: "learn", chapter: "", query: "" }, text: "learn" },
  { to: { view: "equations" }, text: "equations" },
];

export const views: Views = {
  compare: later(async () => (await import("./compare/compare")).Compare),
  equations: Equations,
  learn: later(async () => (await import("./learn/learn")).Learn),
  plan: later(async () => (await import("./plan/plan")).Plan),
  play: Play,
  recording: later(async () => (await import("./recording/recording")).Recording),
  run: Run,
  runs: Runs,
  step: Step,
  "what-if": later(async () => (await import("./what-if/what-if")).WhatIf),
};
