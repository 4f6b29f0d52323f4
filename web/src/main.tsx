// The page behind `limpid serve`. A new view is a folder and a line here.
import { Compare } from "./compare/compare";
import { Equations } from "./equations/equations";
import { draw } from "./page";
import { Plan } from "./plan/plan";
import { Play } from "./play/play";
import { Runs } from "./runs/list";
import { Run } from "./runs/run";
import { Http } from "./source/http";
import { Step } from "./step/step";
import { WhatIf } from "./what-if/what-if";
import "uplot/dist/uPlot.min.css";
import "./style/views.css";

draw({
  source: new Http(),
  home: { view: "runs" },
  links: [
    { to: { view: "runs" }, text: "runs" },
    { to: { view: "play", model: "", query: "" }, text: "play" },
    { to: { view: "plan", query: "" }, text: "plan" },
    { to: { view: "compare", a: "", b: "" }, text: "compare" },
    { to: { view: "equations" }, text: "equations" },
  ],
  views: { compare: Compare, equations: Equations, plan: Plan, play: Play, run: Run, runs: Runs, step: Step, "what-if": WhatIf },
});
