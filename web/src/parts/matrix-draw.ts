// The heat map of one matrix on a canvas, and as SVG.
import { colour, css, inkOn, type Palette, packedPixel, tones } from "./colours";
import { general, signed } from "../numbers";
import { escaped, svgFile } from "./svg";

export interface Grid {
  rows: number;
  columns: number;
  /** The number at a cell. */
  at: (row: number, column: number) => number;
  hidden: (row: number, column: number) => boolean;
  /** Magnitude that the strongest colour stands for. */
  scale: number;
  span: Span;
}

/** Pixels that a matrix may be high. */
const TALLEST = 520;
/** Pixels of its caption and its legend. */
const AROUND = 52;

/** Sizes of a cell in pixels of the page: with room for three digits where there are few. */
export function cellSize({ rows, columns }: { rows: number; columns: number }, room: number): { width: number; height: number } {
  if (columns * 56 <= room && rows <= 24 && columns <= 8) return { width: 56, height: 24 };
  const square = rows === columns;
  const least = square && columns * 11 <= 1.8 * room ? 11 : 1; // so that the tokens of attention are read
  const side = Math.max(least, Math.min(20, Math.floor(room / columns), Math.floor(TALLEST / rows)));
  return { width: side, height: rows === 1 ? 20 : square ? side : Math.max(side, Math.min(12, Math.floor(TALLEST / rows))) };
}

/** The room that a matrix takes with its caption and its legend, in pixels. */
export function roomOf(size: { rows: number; columns: number }, room: number): { width: number; height: number } {
  const cell = cellSize(size, room);
  return { width: size.columns * cell.width, height: size.rows * cell.height + AROUND };
}

/** What the numbers of a matrix span, those aside that are hidden. */
export interface Span {
  /** Largest finite magnitude. */
  largest: number;
  isSigned: boolean;
  /** Whether every number is finite, hidden ones among them. */
  isFinite: boolean;
}

export function spanOf(data: ArrayLike<number>, hidden: (i: number) => boolean): Span {
  const span = { largest: 0, isSigned: false, isFinite: true };
  for (let i = 0; i < data.length; i++) {
    const value = data[i] ?? 0;
    if (!Number.isFinite(value)) span.isFinite = false;
    if (hidden(i)) continue;
    if (value < 0) span.isSigned = true;
    const size = Math.abs(value);
    if (size > span.largest && Number.isFinite(size)) span.largest = size;
  }
  return span;
}

export function draw(canvas: HTMLCanvasElement, grid: Grid, cell: { width: number; height: number }, palette: Palette): void {
  const ratio = Math.min(4, Math.max(1, devicePixelRatio || 1));
  canvas.width = Math.max(1, Math.round(grid.columns * cell.width * ratio));
  canvas.height = Math.max(1, Math.round(grid.rows * cell.height * ratio));
  const context = canvas.getContext("2d");
  if (!context) return;
  context.putImageData(pixels(canvas, grid, cell.width < LEAST_HATCHED ? null : Math.round(HATCH * ratio), palette), 0, 0);
  if (cell.width < LEAST_WRITTEN) return;
  context.scale(ratio, ratio);
  write(context, grid, cell, palette);
}

/** Pixels from one line of a hatch to the next, and of the smallest cells that are hatched, and written in. */
const [HATCH, LEAST_HATCHED, LEAST_WRITTEN] = [5, 3, 44];
const MASKED = packedPixel([127, 127, 127], 60);

/** Every cell filled, line of pixels by line: an image costs a hundredth of as many rectangles. */
function pixels({ width, height }: HTMLCanvasElement, grid: Grid, hatch: number | null, palette: Palette): ImageData {
  const image = new ImageData(width, height);
  const all = new Uint32Array(image.data.buffer);
  const tone = tones(grid.scale, palette);
  const edges = Array.from({ length: grid.columns + 1 }, (_, column) => Math.round((column * width) / grid.columns));
  const line = packedPixel(palette.hatch);
  for (let row = 0; row < grid.rows; row++) {
    const [top, below] = [Math.round((row * height) / grid.rows), Math.round(((row + 1) * height) / grid.rows)];
    for (let column = 0; column < grid.columns; column++) {
      const fill = !grid.hidden(row, column) ? tone(grid.at(row, column)) : hatch === null ? MASKED : 0;
      all.fill(fill, top * width + edges[column]!, top * width + edges[column + 1]!);
    }
    for (let y = top + 1; y < below; y++) all.copyWithin(y * width, top * width, (top + 1) * width);
    if (hatch === null) continue;
    for (let column = 0; column < grid.columns; column++)
      if (grid.hidden(row, column))
        for (let y = top; y < below; y++)
          for (let x = edges[column]!; x < edges[column + 1]!; x++) if ((x + y) % hatch === 0) all[y * width + x] = line;
  }
  return image;
}

/** The number in each cell. */
function write(context: CanvasRenderingContext2D, grid: Grid, cell: { width: number; height: number }, palette: Palette): void {
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = `11px ${getComputedStyle(context.canvas).fontFamily}`;
  for (let row = 0; row < grid.rows; row++)
    for (let column = 0; column < grid.columns; column++) {
      if (grid.hidden(row, column)) continue;
      const value = grid.at(row, column);
      context.fillStyle = inkOn(colour(value, grid.scale, palette));
      context.fillText(digits(value), (column + 0.5) * cell.width, (row + 0.5) * cell.height + 0.5);
    }
}

/** At most six letters. */
export function digits(value: number): string {
  if (!Number.isFinite(value)) return general(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 10_000)) return signed(value.toExponential(1).replace("e+", "e"));
  return signed(general(value, size < 0.1 ? 2 : 3));
}

export interface Named {
  title: string;
  rows: string[] | null;
  columns: string[] | null;
}

/** The same picture as SVG, with the names of rows and columns. */
export function svg(grid: Grid, cell: { width: number; height: number }, { title, rows, columns }: Named, palette: Palette): string {
  const left = rows ? 12 + 6.5 * Math.max(...rows.map((one) => Math.min(16, one.length))) : 8;
  const above = 24 + (columns ? 6 + 6.5 * Math.max(...columns.map((one) => Math.min(16, one.length))) : 0);
  const [width, height] = [Math.max(left + grid.columns * cell.width + 8, 16 + 8 * title.length), above + grid.rows * cell.height + 30];
  const parts: string[] = [];
  for (let row = 0; row < grid.rows; row++)
    for (let column = 0; column < grid.columns; column++) {
      const [x, y] = [left + column * cell.width, above + row * cell.height];
      const hidden = grid.hidden(row, column);
      const value = grid.at(row, column);
      const fill = colour(value, grid.scale, palette);
      const box = `x="${x}" y="${y}" width="${cell.width}" height="${cell.height}"`;
      parts.push(`<rect ${box} fill="${hidden ? "url(#hidden)" : css(fill)}"/>`);
      if (cell.width >= 44 && !hidden)
        parts.push(`<text x="${x + cell.width / 2}" y="${y + cell.height / 2 + 4}" text-anchor="middle" fill="${inkOn(fill)}">${digits(value)}</text>`);
    }
  const label = (text: string) => escaped(text.length > 16 ? `${text.slice(0, 15)}…` : text);
  if (rows && cell.height >= 10)
    rows.forEach((text, row) =>
      parts.push(`<text x="${left - 5}" y="${above + (row + 0.5) * cell.height + 4}" text-anchor="end">${label(text)}</text>`),
    );
  if (columns && cell.width >= 10)
    columns.forEach((text, column) => {
      const [x, y] = [left + (column + 0.5) * cell.width + 4, above - 5];
      parts.push(`<text x="${x}" y="${y}" transform="rotate(-90 ${x} ${y})">${label(text)}</text>`);
    });
  const stops = [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1].map((at) => `<stop offset="${(at + 1) / 2}" stop-color="${css(colour(at, 1, palette))}"/>`);
  const most = signed(String(Number(grid.scale.toPrecision(3))));
  parts.push(`<text x="8" y="${height - 8}">−${most}<tspan x="${24 + 7 * most.length + 96}">${most}</tspan></text><rect x="${20 + 7 * most.length}" y="${height - 17}" width="92" height="10" fill="url(#scale)"/>`);
  return svgFile(
    { width, height, ink: palette.ink, paper: css(palette.paper), title, font: "monospace" },
    `<defs><pattern id="hidden" width="5" height="5" patternUnits="userSpaceOnUse"><path d="M0 5L5 0" stroke="${css(palette.hatch)}" stroke-width="0.7"/></pattern><linearGradient id="scale">${stops.join("")}</linearGradient></defs>${parts.join("")}`,
  );
}
