// One array of both beside each other, and what lies between them: heat maps whose cells lead to both values.
import { useSignal } from "@preact/signals";
import { written } from "../address";
import { Choice } from "../parts/form";
import { indexAt, type Layout, layout, placeOf } from "../parts/layout";
import { useLoaded } from "../parts/loaded";
import { Matrix } from "../parts/matrix";
import { spanOf } from "../parts/matrix-draw";
import { LARGEST, Tiles } from "../parts/tiles";
import { general, exact, signed } from "../numbers";
import { useWidth } from "../parts/width";
import type { PairSource, Side } from "../source/pair";
import type { Quantity } from "./documents";

interface Shown {
  name: Quantity["name"];
  shape: number[];
  axes: string[];
  kind: Quantity["kind"];
  /** The entry where both differ most. */
  index: number[];
}

interface Props {
  source: PairSource;
  row: Shown;
  /** What the two are called. */
  names: { a: string; b: string };
  /** Where an entry of each stands, if it can be opened. */
  to: (side: "a" | "b", entry: string) => string | null;
  /** Whether what rounding allows is known. */
  bounded: boolean;
  /** Whether it is known of vectors along the last axis as a whole, not of each entry. */
  ofVectors?: boolean;
}

export function Sides(props: Props) {
  const { row, bounded } = props;
  const [first = 0, second = 0] = row.index;
  const batched = row.axes[0] === "batch";
  const batch = useSignal(batched ? first : 0);
  const laid = layout(row.shape, row.axes, batch.value);
  const headed = laid.panels.length > 1;
  const panel = useSignal(headed ? (batched ? second : first) : 0);
  const at = useSignal<{ row: number; column: number } | null>(null);
  const place = placeOf(laid, row.index);
  const chosen = at.value ?? (place && place.panel === panel.value ? place : null);
  const index = laid.panels[panel.value]?.index ?? [];
  const sides: Side[] = ["a", "b", "difference", ...(bounded ? (["share"] as const) : [])];
  const [width, box] = useWidth<HTMLElement>(240, 1400);
  const room = Math.max(220, Math.min(400, Math.floor((width - 20) / sides.length) - 30));
  const count = (size: number): string[] => Array.from({ length: size }, (_, one) => String(one));
  return (
    <section class={`beside-each-other ${row.kind}`} aria-label={`${row.name} of both`} ref={box}>
      <h3>
        <code>{row.name}</code> <span class="shape">{row.shape.map((size, axis) => `${row.axes[axis] ?? ""} ${size}`.trim()).join(" × ")}</span>
      </h3>
      {(headed || (batched && (row.shape[0] ?? 1) > 1)) && (
        <div class="line-up">
          {batched && (row.shape[0] ?? 1) > 1 && <Choice label="row of the batch" value={String(batch.value)} choices={count(row.shape[0] ?? 1)} onValue={(value) => (batch.value = Number(value))} />}
          {headed && <Choice label="head" value={String(panel.value)} choices={count(laid.panels.length)} onValue={(value) => (panel.value = Number(value))} />}
        </div>
      )}
      <div class="sides">
        {sides.map((side) => (
          <One key={`${row.name} ${index} ${side}`} {...props} side={side} laid={laid} index={index} room={room} chosen={chosen} onChosen={(now) => (at.value = now)} />
        ))}
      </div>
      {chosen && <Both key={row.name} {...props} index={indexAt(laid, index, chosen.row, chosen.column).slice(0, row.shape.length)} />}
    </section>
  );
}

interface OneProps extends Props {
  side: Side;
  laid: Layout;
  index: number[];
  room: number;
  chosen: { row: number; column: number } | null;
  onChosen: (cell: { row: number; column: number }) => void;
}

function One({ source, row, names, side, laid, index, room, chosen, onChosen, ofVectors }: OneProps) {
  const caption = { a: names.a, b: names.b, difference: `${names.a} − ${names.b}`, share: ofVectors ? "each vector over its bound" : "over what rounding allows" }[side];
  const large = laid.rows * laid.columns > LARGEST;
  const entry = written({ name: row.name, index });
  const data = useLoaded(async () => (large ? null : source.slice(entry, side)), [source, entry, side]);
  const other = useLoaded(async () => (large || side === "difference" || side === "share" ? null : source.slice(entry, side === "a" ? "b" : "a")), [source, entry, side]);
  const common = {
    title: `${entry}, ${caption}`,
    caption,
    rowAxis: laid.rowAxis,
    columnAxis: laid.columnAxis,
    room,
    ...(row.kind === "weight" ? {} : { frame: row.kind }),
    chosen,
    onChoose: (r: number, c: number) => onChosen({ row: r, column: c }),
    named: (r: number, c: number) => written({ name: row.name, index: indexAt(laid, index, r, c).slice(0, row.shape.length) }),
  };
  if (large) return <Tiles {...common} source={source.tiled(side)} name={row.name} index={index} rows={laid.rows} columns={laid.columns} />;
  if (!data) return <p class="quiet loading">{side === "share" ? "working out what rounding allows …" : `reading ${caption} …`}</p>;
  const scale = side === "share" ? 1 : side === "difference" ? undefined : Math.max(...[data, other ?? []].map((one) => spanOf(one, () => false).largest));
  const [what, each] = ofVectors && row.shape.length ? ["vector", row.shape.at(-1) ?? 1] : ["entry", 1];
  const beyond = side === "share" ? data.filter((one) => !(one <= 1)).length / each : 0;
  return (
    <div>
      <Matrix {...common} rows={laid.rows} columns={laid.columns} data={data} {...(scale === undefined ? {} : { scale })} />
      {side === "share" && <p class={beyond ? "beyond" : "quiet"}>{beyond ? `${beyond.toLocaleString("en")} of ${(data.length / each).toLocaleString("en")} ${what === "entry" ? "entries" : "vectors"} beyond the bound` : `every ${what} within its bound, which is 1`}</p>}
    </div>
  );
}

/** The two values of one entry, each a way to where it stands. */
function Both({ source, row, names, to, bounded, ofVectors, index }: Props & { index: number[] }) {
  const entry = written({ name: row.name, index });
  const found = useLoaded(
    async () => Promise.all((["a", "b", "difference"] as const).map(async (side) => Number((await source.slice(entry, side))[0]))),
    [source, entry],
  );
  const share = useLoaded(async () => (bounded ? Number((await source.slice(entry, "share"))[0]) : null), [source, entry, bounded]);
  if (!found) return <p class="quiet loading">reading {entry} …</p>;
  const [a = NaN, b = NaN, difference = NaN] = found;
  const value = (side: "a" | "b", number: number) => {
    const href = to(side, entry);
    const text = <span class="number" data-value={exact(number)}>{signed(exact(number))}</span>;
    return href === null ? text : <a href={href}>{text}</a>;
  };
  return (
    <p class="both" aria-live="polite">
      <code>{entry}</code>: {names.a} {value("a", a)}, {names.b} {value("b", b)}, apart by{" "}
      <span class="number" data-value={exact(difference)}>{signed(general(difference, 6))}</span>
      {share !== null && (
        <>
          {ofVectors ? "; its vector is apart by " : ", "}
          <span class={`number${share <= 1 ? "" : " beyond"}`}>{general(share, 3)}</span> of what rounding allows
        </>
      )}
    </p>
  );
}
