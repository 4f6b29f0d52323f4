// The page inside one self-contained file: the step that the file holds, every number of it, the equations.
import type { Address } from "./address";
import { Equations } from "./equations/equations";
import { draw, type Link } from "./page";
import { inPage } from "./source/file";
import { Step } from "./step/step";
import { Worked } from "./worked/worked";

void inPage().then((source) => {
  const home: Address = { view: "step", ...source.only, entry: null };
  const links: Link[] = [{ to: home, text: "the step" }];
  if (source.isWhole) links.push({ to: { view: "worked" }, text: "every number" });
  links.push({ to: { view: "equations" }, text: "equations" });
  Object.assign(globalThis, { limpid: source }); // for the console: await limpid.step().explain("loss")
  if (!location.hash) history.replaceState(null, "", source.document.home);
  draw({ source, home, links, views: { step: Step, worked: Worked, equations: Equations } });
});
