// The page behind `limpid serve`. A new view is a folder and a line here.
import { Equations } from "./equations/equations";
import { draw } from "./page";
import { Http } from "./source/http";
import { Step } from "./step/step";

draw({
  source: new Http(),
  home: { view: "runs" },
  links: [{ to: { view: "equations" }, text: "equations" }],
  views: { step: Step, equations: Equations },
});
