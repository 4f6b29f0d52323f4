// The page in a notebook cell, in one piece.
import { parse } from "./address";
import { Given } from "./given/given";
import { Frame, opened } from "./notebook";
import { draw } from "./page";
import { Http } from "./source/http";
import { links, views } from "./views";

void opened().then((channel) =>
  draw({
    source: new Http(channel.api),
    home: parse(location.hash),
    links,
    views: { ...views, given: Given },
    tools: <Frame channel={channel} />,
  }),
);
