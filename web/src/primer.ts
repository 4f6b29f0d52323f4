// The primer inside one self-contained file, which reads without this: signs that say what they mean, figures that move.
import { move } from "./learn/figures/move";
import { opensOnPaper } from "./learn/paper";
import { reachScrolled } from "./learn/scrolled";
import { explainSigns, reachable } from "./learn/signs";
import "./style/base.css";
import "./style/learn.css";

const page = document.getElementById("limpid");
if (page) {
  explainSigns(page);
  move(page);
  opensOnPaper(page);
  reachScrolled(page);
  for (const part of page.querySelectorAll(".part")) reachable(part);
}
