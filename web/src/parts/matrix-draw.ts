// The heat map of one matrix on a canvas, and as SVG.
import { colour, css, inkOn, type Palette, type Rgb } from "./colours";
import { general, signed } from "../numbers";
import { escaped, svgFile } from "./svg";

export interface Grid {
  rows: number;
  columns: number;
  /** The number at a cell. */
  at: (row: number, column: number) => number;
  hidden: (row: number, column: number) => boolean;
  /** Largest magnitude, which the strongest colour stands for. */
  scale: number;
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

export function scaleOf(data: ArrayLike<number>, hidden: (i: number) => boolean): number {
  let largest = 0;
  for (let i = 0; i < data.length; i++) {
    const size = Math.abs(data[i] ?? 0);
    if (size > largest && Number.isFinite(size) && !hidden(i)) largest = size;
  }
  return largest;
}

export function draw(canvas: HTMLCanvasElement, grid: Grid, cell: { width: number; height: number }, palette: Palette): void {
  const ratio = Math.min(4, Math.max(1, devicePixelRatio || 1));
  const [width, height] = [grid.columns * cell.width, grid.rows * cell.height];
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const context = canvas.getContext("2d");
  if (!context) return;
  if (cell.width < 3) return drawPixels(context, canvas, grid, palette);
  context.scale(ratio, ratio);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  for (let row = 0; row < grid.rows; row++)
    for (let column = 0; column < grid.columns; column++) {
      const [x, y] = [column * cell.width, row * cell.height];
      if (grid.hidden(row, column)) {
        hatch(context, x, y, cell, palette);
        continue;
      }
      const value = grid.at(row, column);
      const fill = colour(value, grid.scale, palette);
      context.fillStyle = css(fill);
      context.fillRect(x, y, cell.width, cell.height);
      if (cell.width >= 44) {
        context.fillStyle = inkOn(fill);
        context.fillText(digits(value), x + cell.width / 2, y + cell.height / 2 + 0.5);
      }
    }
}

const MASKED: Rgb = [127, 127, 127];

/** Cells of a pixel or two: one image, scaled without blurring. */
function drawPixels(context: CanvasRenderingContext2D, canvas: HTMLCanvasElement, grid: Grid, palette: Palette): void {
  const image = new ImageData(grid.columns, grid.rows);
  for (let row = 0, at = 0; row < grid.rows; row++)
    for (let column = 0; column < grid.columns; column++, at += 4) {
      const hidden = grid.hidden(row, column);
      const fill = hidden ? MASKED : colour(grid.at(row, column), grid.scale, palette);
      image.data[at] = fill[0];
      image.data[at + 1] = fill[1];
      image.data[at + 2] = fill[2];
      image.data[at + 3] = hidden ? 60 : 255;
    }
  const small = new OffscreenCanvas(grid.columns, grid.rows);
  small.getContext("2d")?.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

function hatch(context: CanvasRenderingContext2D, x: number, y: number, cell: { width: number; height: number }, palette: Palette): void {
  context.save();
  context.beginPath();
  context.rect(x, y, cell.width, cell.height);
  context.clip();
  context.strokeStyle = palette.hatch;
  context.lineWidth = 0.7;
  context.beginPath();
  for (let at = -cell.height; at < cell.width; at += 5) {
    context.moveTo(x + at, y + cell.height);
    context.lineTo(x + at + cell.height, y);
  }
  context.stroke();
  context.restore();
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
    `<defs><pattern id="hidden" width="5" height="5" patternUnits="userSpaceOnUse"><path d="M0 5L5 0" stroke="${palette.hatch}" stroke-width="0.7"/></pattern><linearGradient id="scale">${stops.join("")}</linearGradient></defs>${parts.join("")}`,
  );
}
