// The page behind `limpid serve`.
import { draw } from "./page";
import { Http } from "./source/http";
import { links, views } from "./views";

draw({ source: new Http(), home: { view: "runs" }, links, views });
