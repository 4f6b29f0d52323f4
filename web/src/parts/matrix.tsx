// A matrix as a heat map: a canvas for the eye, a grid for keyboard and screen reader, every digit of the cell below it.
import { useSignal } from "@preact/signals";
import { useEffect, useId, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { exact, signed } from "../numbers";
import { css, palette } from "./colours";
import { cellSize, draw, type Grid, spanOf, svg } from "./matrix-draw";
import { Save } from "./save";
import { visible } from "./text";

/** Pixels that a matrix may be wide where nothing else is said. */
export const ROOM = 420;

export interface MatrixProps {
  title: string;
  rows: number;
  columns: number;
  data: ArrayLike<number>;
  hidden?: Uint8Array | null;
  rowAxis: string;
  columnAxis: string;
  rowLabels?: string[] | null;
  columnLabels?: string[] | null;
  /** The colour's full strength; the largest magnitude when left out. */
  scale?: number;
  room?: number;
  frame?: "forward" | "backward" | "update";
  /** The entry that is on show elsewhere. */
  chosen?: { row: number; column: number } | null;
  onChoose?: (row: number, column: number) => void;
  /** Entries that something was found at. */
  pins?: { row: number; column: number }[];
  /** What the entry at a cell is called. */
  named?: (row: number, column: number) => string;
  caption?: string;
}

export function Matrix(props: MatrixProps) {
  const { title, rows, columns, rowAxis, columnAxis, room = ROOM, frame, chosen, onChoose, caption } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const id = useId();
  const cursor = useSignal(chosen ?? { row: 0, column: 0 });
  const pointed = useSignal(false);
  const cell = cellSize(props, room);
  const grid = useMemo(() => gridOf(props), [props.data, props.hidden, rows, columns, props.scale]);
  useLayoutEffect(() => {
    const again = () => canvas.current && draw(canvas.current, grid, cell, palette());
    again();
    const queries = ["(prefers-color-scheme: dark)", "print"].map((query) => matchMedia(query));
    for (const query of queries) query.addEventListener("change", again);
    return () => queries.forEach((query) => query.removeEventListener("change", again));
  }, [grid, cell.width, cell.height]);
  useEffect(() => {
    if (chosen) cursor.value = chosen;
  }, [chosen?.row, chosen?.column]);

  const { row, column } = cursor.value;
  const value = grid.at(row, column);
  const said = `${props.named?.(row, column) ?? `${row}, ${column}`}: ${
    grid.hidden(row, column) ? "hidden by the mask, " : ""
  }${signed(exact(value))}`;
  const where = [axisText(rowAxis, row, props.rowLabels), axisText(columnAxis, column, props.columnLabels)].filter(Boolean).join(", ");

  const point = (event: MouseEvent) => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const to = { row: clamp(Math.floor(y * rows), rows), column: clamp(Math.floor(x * columns), columns) };
    if (to.row !== cursor.value.row || to.column !== cursor.value.column) cursor.value = to; // within a cell nothing changes
    pointed.value = true;
  };
  const key = (event: KeyboardEvent) => {
    const moved = step(event.key, row, column, rows, columns);
    if (event.key === "Enter" || event.key === " ") onChoose?.(row, column);
    else if (moved) cursor.value = moved;
    else return;
    event.preventDefault();
    pointed.value = true;
  };
  const [width, height] = [columns * cell.width, rows * cell.height];
  const showRows = props.rowLabels && cell.height >= 10;
  const showColumns = props.columnLabels && cell.width >= 11;
  return (
    <figure class={`matrix ${frame ?? ""}`}>
      <figcaption>
        {caption ?? title}
        <Save name={title} svg={() => svg(grid, cell, { title, rows: shown(props.rowLabels), columns: shown(props.columnLabels) }, palette())} />
      </figcaption>
      <div class="matrix-scroll">
        <div class="matrix-grid" style={{ gridTemplateColumns: `${showRows ? "auto " : ""}${width}px` }}>
          {showColumns && (
            <div class="columns" aria-hidden="true" style={{ gridColumn: showRows ? 2 : 1 }}>
              {props.columnLabels?.map((text, at) => (
                <span key={at} style={{ width: `${cell.width}px` }} class={at === column && pointed.value ? "at" : ""}>
                  {visible(text)}
                </span>
              ))}
            </div>
          )}
          {showRows && (
            <div class="rows" aria-hidden="true">
              {props.rowLabels?.map((text, at) => (
                <span key={at} style={{ height: `${cell.height}px`, lineHeight: `${cell.height}px` }} class={at === row && pointed.value ? "at" : ""}>
                  {visible(text)}
                </span>
              ))}
            </div>
          )}
          <div
            class="cells"
            style={{ width: `${width}px`, height: `${height}px` }}
            role="grid"
            tabIndex={0}
            aria-label={`${title}, ${rows} × ${columns}${rowAxis ? `, ${rowAxis} down, ${columnAxis} across` : ""}; arrow keys move, Enter opens`}
            aria-rowcount={rows}
            aria-colcount={columns}
            aria-activedescendant={`${id}-cell`}
            onKeyDown={key}
            onMouseMove={point}
            onMouseLeave={() => (pointed.value = false)}
            onClick={(event) => {
              point(event);
              onChoose?.(cursor.value.row, cursor.value.column);
            }}
          >
            <canvas ref={canvas} style={{ width: `${width}px`, height: `${height}px` }} aria-hidden="true" />
            <div role="row" aria-rowindex={row + 1}>
              <div
                role="gridcell"
                id={`${id}-cell`}
                aria-colindex={column + 1}
                aria-label={`${said}, ${where}`}
                class={`cursor${chosen && chosen.row === row && chosen.column === column ? " chosen" : ""}${pointed.value || chosen ? " on" : ""}`}
                style={{ left: `${column * cell.width}px`, top: `${row * cell.height}px`, width: `${cell.width}px`, height: `${cell.height}px` }}
              />
            </div>
            {props.pins?.map((pin) => (
              <div
                key={`${pin.row} ${pin.column}`}
                class="cell-pin"
                aria-hidden="true"
                style={{ left: `${(pin.column + 0.5) * cell.width}px`, top: `${(pin.row + 0.5) * cell.height}px` }}
              />
            ))}
            {chosen && (
              <div
                class="chosen-cell"
                style={{ left: `${chosen.column * cell.width}px`, top: `${chosen.row * cell.height}px`, width: `${cell.width}px`, height: `${cell.height}px` }}
              />
            )}
          </div>
        </div>
      </div>
      <div class="legend" aria-hidden="true">
        {pointed.value ? (
          <span class="number" data-value={exact(value)}>
            {said}
          </span>
        ) : (
          <Legend grid={grid} />
        )}
      </div>
    </figure>
  );
}

function Legend({ grid }: { grid: Grid }) {
  const { negative, positive, paper, notFinite } = palette();
  const { isSigned, isFinite } = grid.span;
  const stops = [...(isSigned ? [...negative].reverse() : []), paper, ...positive].map(css).join(",");
  const hidden = grid.rows > 0 && grid.hidden(0, grid.columns - 1);
  return (
    <>
      <span class="number">{isSigned ? signed(String(Number((-grid.scale).toPrecision(3)))) : 0}</span>
      <span class="bar" style={{ background: `linear-gradient(to right, ${stops})` }} />
      <span class="number">{Number(grid.scale.toPrecision(3))}</span>
      {hidden && <span class="key hatch">hidden by the mask</span>}
      {!isFinite && (
        <span class="key" style={{ "--key": css(notFinite) }}>
          not finite
        </span>
      )}
    </>
  );
}

function gridOf({ rows, columns, data, hidden, scale }: MatrixProps): Grid {
  const span = spanOf(data, (i) => Boolean(hidden?.[i]));
  return {
    rows,
    columns,
    at: (row, column) => Number(data[row * columns + column]),
    hidden: (row, column) => Boolean(hidden?.[row * columns + column]),
    scale: scale ?? span.largest,
    span,
  };
}

function axisText(axis: string, at: number, names?: string[] | null): string {
  if (!axis) return "";
  return `${axis} ${at}${names?.[at] === undefined ? "" : ` ${visible(names[at])}`}`;
}

function shown(texts?: string[] | null): string[] | null {
  return texts ? texts.map(visible) : null;
}

function clamp(at: number, size: number): number {
  return Math.max(0, Math.min(size - 1, at));
}

function step(key: string, row: number, column: number, rows: number, columns: number) {
  const moves: Record<string, [number, number]> = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, columns - 1], PageUp: [0, column], PageDown: [rows - 1, column],
  };
  const to = moves[key];
  return to ? { row: clamp(to[0], rows), column: clamp(to[1], columns) } : null;
}
