// A matrix too large to draw entry by entry: cells of its pyramid, entered level by level. A cell keeps the least and the
// largest entry that it stands for, so that one outlier, or one number that is not finite, is seen at every level.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import type { Kind, StepSource, Tile } from "../source/source";
import { useLoaded } from "./loaded";
import { Matrix, type MatrixProps, ROOM } from "./matrix";
import { roomOf } from "./matrix-draw";
import { Reading } from "./seen";

/** Entries that are drawn one by one. */
export const LARGEST = 65_536;
const SIDE = 128;

type Props = Omit<MatrixProps, "data" | "hidden" | "rows" | "columns"> & {
  source: Pick<StepSource, "tiles">;
  name: string;
  index: number[];
  kind?: Kind;
  rows: number;
  columns: number;
};

/** The level at which all of a matrix is one tile. */
function topOf(rows: number, columns: number): number {
  return Math.max(0, Math.ceil(Math.log2(Math.max(rows, columns) / SIDE)));
}

/** What is drawn of a matrix at first: all of it, or its topmost tile. */
export function atFirst({ rows, columns }: { rows: number; columns: number }): { rows: number; columns: number } {
  const size = rows * columns > LARGEST ? 2 ** topOf(rows, columns) : 1;
  return { rows: Math.ceil(rows / size), columns: Math.ceil(columns / size) };
}

export function Tiles(props: Props) {
  const { source, name, index, kind = "value", rows, columns } = props;
  const top = topOf(rows, columns);
  const at = useSignal({ level: top, row: 0, column: 0 });
  const { level, row, column } = at.value;
  const tile = useLoaded<Tile>(() => source.tiles({ name, index, kind, level, row, column }), [source, name, kind, `${index}`, level, row, column]);
  const drawn = useMemo(() => tile && strongest(tile), [tile]);
  const size = 2 ** level;
  const [firstRow, firstColumn] = [row * SIDE * size, column * SIDE * size];
  const enter = (r: number, c: number) => {
    const [atRow, atColumn] = [firstRow + r * size, firstColumn + c * size];
    if (level === 0) return props.onChoose?.(atRow, atColumn);
    const below = Math.max(0, level - 3);
    const side = SIDE * 2 ** below;
    at.value = { level: below, row: Math.floor(atRow / side), column: Math.floor(atColumn / side) };
  };
  return (
    <div class="tiles">
      <p class="quiet">
        {level < top && (
          <button type="button" onClick={() => (at.value = { level: top, row: 0, column: 0 })}>
            the whole
          </button>
        )}{" "}
        rows {firstRow}–{Math.min(rows, firstRow + SIDE * size) - 1}, columns {firstColumn}–{Math.min(columns, firstColumn + SIDE * size) - 1}
        {size > 1 && `, a cell is ${size} × ${size} entries, by its largest magnitude`}
      </p>
      {tile && drawn ? (
        <Matrix
          {...props}
          rows={tile.rows}
          columns={tile.columns}
          data={drawn}
          rowLabels={null}
          columnLabels={null}
          chosen={level === 0 && props.chosen ? inside(props.chosen, firstRow, firstColumn, tile) : null}
          pins={level === 0 ? (props.pins ?? []).flatMap((pin) => inside(pin, firstRow, firstColumn, tile) ?? []) : []}
          onChoose={enter}
          named={(r, c) =>
            level === 0
              ? (props.named?.(firstRow + r, firstColumn + c) ?? "")
              : `rows from ${firstRow + r * size}, columns from ${firstColumn + c * size}`
          }
        />
      ) : (
        <Reading name={`reading ${name} …`} {...roomOf({ rows: within(rows, firstRow, size), columns: within(columns, firstColumn, size) }, props.room ?? ROOM)} />
      )}
    </div>
  );
}

/** Cells of a tile along an axis of so many entries, from one of them on. */
function within(entries: number, first: number, size: number): number {
  return Math.min(SIDE, Math.ceil((entries - first) / size));
}

/** Of each cell what stands out most: a number that is not finite, else the entry of the largest magnitude. */
function strongest({ min, max, notFinite }: Tile): Float32Array {
  return Float32Array.from(min, (low, i) => {
    if (notFinite[i]) return NaN;
    const high = max[i] ?? NaN;
    return Math.abs(low) > Math.abs(high) ? low : high;
  });
}

function inside(chosen: { row: number; column: number }, firstRow: number, firstColumn: number, tile: Tile) {
  const [row, column] = [chosen.row - firstRow, chosen.column - firstColumn];
  return row >= 0 && column >= 0 && row < tile.rows && column < tile.columns ? { row, column } : null;
}
