// One array of the step as heat maps: a matrix, or one for each head.
import { useComputed } from "@preact/signals";
import type { ArrayPlace } from "../documents";
import { written } from "../address";
import { indexAt, type Layout, layout, placeOf } from "../parts/layout";
import { useLoaded } from "../parts/loaded";
import { Matrix, ROOM } from "../parts/matrix";
import { Reading, Seen } from "../parts/seen";
import { roomOf } from "../parts/matrix-draw";
import { atFirst, LARGEST, Tiles } from "../parts/tiles";
import { go, isWhole, labels, useStep, waits } from "../parts/step-context";
import { pinned } from "./pins";
import { Value } from "../parts/value";
import type { Kind, Slice } from "../source/source";

interface Props {
  /** NAME, or m(NAME), v(NAME), update(NAME). */
  name: string;
  kind?: Kind;
  frame?: "forward" | "backward" | "update";
  caption?: string;
  room?: number;
}

export function ArrayView({ name, kind = "value", frame, caption, room = ROOM }: Props) {
  const shown = useStep();
  const bare = name.replace(/^(?:m|v|update)\((.+)\)$/, "$1");
  const place = shown.view.arrays[bare];
  if (!place) return null;
  const { laid, inPanel, taken } = sized(place, place.axes[0] === "batch" ? shown.row.value : 0, room);
  return (
    <div class={laid.panels.length > 1 ? "panels" : "panel"}>
      {!isWhole(shown.view, bare) && <p class="quiet corner">a corner, {place.shape.join(" × ")}: the file holds no more</p>}
      {laid.panels.map((panel) => (
        <Seen key={`${panel.index}`} waits={waits(shown)} name={written({ name, index: panel.index })} {...taken}>
          <Panel
            name={name}
            bare={bare}
            kind={kind}
            laid={laid}
            index={panel.index}
            frame={frame}
            room={inPanel}
            caption={[caption, panel.title].filter(Boolean).join(", ")}
          />
        </Seen>
      ))}
    </div>
  );
}

/** How an array is laid out, and the room that each of its panels takes, in pixels. */
function sized(place: ArrayPlace, row: number, room: number) {
  const laid = layout(place.shape, place.axes, row);
  const each = laid.panels.length > 1 ? Math.max(96, Math.min(220, Math.floor(room / Math.min(2, laid.panels.length)))) : room;
  const inPanel = laid.panels.length > 1 && laid.columns <= 6 ? room : each;
  return { laid, inPanel, taken: roomOf(atFirst(laid), inPanel) };
}

/** The room of an array and its gradient, beside each other or below each other as there is place. */
export function Room({ place, isGradient }: { place: ArrayPlace | undefined; isGradient: boolean }) {
  if (!place) return null;
  const { laid, taken } = sized(place, 0, ROOM);
  const size = { width: `${taken.width}px`, height: `${taken.height}px` };
  return (
    <div class="sides">
      {(isGradient ? ["value", "gradient"] : ["value"]).map((one) => (
        <div key={one} class="side panels">
          {laid.panels.map((panel) => (
            <p key={panel.title} class="reading" style={size} />
          ))}
        </div>
      ))}
    </div>
  );
}

interface PanelProps {
  name: string;
  bare: string;
  kind: Kind;
  laid: Layout;
  index: number[];
  frame: Props["frame"];
  room: number;
  caption: string;
}

function Panel({ name, bare, kind, laid, index, frame, room, caption }: PanelProps) {
  const shown = useStep();
  const { source, view } = shown;
  const large = laid.rows * laid.columns > LARGEST;
  const slice = useLoaded<Slice | null>(
    async () => (large ? null : source.slice(written({ name, index }), kind)),
    [source, name, kind, String(index)],
  );
  const around = kind === "gradient" ? `grad(${name})` : name;
  const onShow = useComputed(() => {
    const entry = shown.entry.value;
    const inside = entry && same(entry.name, bare) && index.every((i, axis) => entry.index[axis] === i);
    return inside ? entry.index.join() : null; // a text: the panels that it does not stand in stay as they are
  }).value;
  const here = onShow === null ? null : placeOf(laid, onShow ? onShow.split(",").map(Number) : []);
  const open = (r: number, c: number) => go(shown, { name: around, index: indexAt(laid, index, r, c) });
  const common = {
    title: written({ name: around, index }),
    rowAxis: laid.rowAxis,
    columnAxis: laid.columnAxis,
    rowLabels: labels(view, laid.rowAxis, laid.rows, shown.row),
    columnLabels: labels(view, laid.columnAxis, laid.columns, shown.row),
    room,
    ...(frame ? { frame } : {}),
    caption: caption || kindText(kind),
    chosen: here,
    pins: pinned(shown, around)
      .map((at) => placeOf(laid, at))
      .filter((at) => at !== null && laid.panels[at.panel]?.index.join() === index.join()) as { row: number; column: number }[],
    onChoose: open,
    named: (r: number, c: number) => written({ name: around, index: indexAt(laid, index, r, c) }),
  };
  if (large) return <Tiles {...common} source={source} name={name} index={index} kind={kind} rows={laid.rows} columns={laid.columns} />;
  if (!slice) return <Reading name={`reading ${common.title} …`} {...roomOf(laid, room)} />;
  if (laid.rows * laid.columns === 1)
    return (
      <p class={`scalar ${frame ?? ""}`}>
        {common.caption}: <Value value={Number(slice.data[0])} entry={written({ name: around, index: indexAt(laid, index, 0, 0).slice(0, view.arrays[bare]?.shape.length ?? 0) })} digits={9} />
      </p>
    );
  return <Matrix {...common} rows={laid.rows} columns={laid.columns} data={slice.data} hidden={slice.hidden} />;
}

function kindText(kind: Kind): string {
  return { value: "value", gradient: "gradient", exact: "mathematics", difference: "engine − mathematics", share: "share of the bound" }[kind];
}

function same(asked: string, bare: string): boolean {
  return (/^(?:grad|m|v|update)\((.+)\)$/.exec(asked)?.[1] ?? asked) === bare;
}

