// Colours of values: brown below zero, teal above, the paper at zero; magenta is not finite. Safe for colour-blind eyes,
// and none of them is the blue, red or green of a frame.

export type Rgb = [number, number, number];

export interface Palette {
  paper: Rgb;
  ink: string;
  negative: Rgb[];
  positive: Rgb[];
  notFinite: Rgb;
  hatch: Rgb;
  cursor: string;
}

const LIGHT: Palette = {
  paper: [250, 250, 250],
  ink: "#1b1f24",
  negative: [[246, 232, 195], [223, 194, 125], [191, 129, 45], [140, 81, 10], [84, 48, 5]],
  positive: [[199, 234, 229], [128, 205, 193], [53, 151, 143], [1, 102, 94], [0, 60, 48]],
  notFinite: [255, 0, 200],
  hatch: [154, 164, 175],
  cursor: "#1b1f24",
};
const DARK: Palette = {
  paper: [30, 34, 40],
  ink: "#e3e6ea",
  negative: [[66, 52, 34], [110, 79, 38], [163, 112, 45], [214, 160, 84], [250, 218, 162]],
  positive: [[30, 62, 60], [33, 95, 90], [44, 138, 129], [98, 190, 178], [190, 240, 232]],
  notFinite: [255, 60, 215],
  hatch: [89, 99, 110],
  cursor: "#ffffff",
};

export function palette(): Palette {
  return matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches ? DARK : LIGHT;
}

export const LIGHT_PALETTE = LIGHT;
export const DARK_PALETTE = DARK;

/** The colour of a number between -scale and scale. */
export function colour(value: number, scale: number, { paper, negative, positive, notFinite }: Palette): Rgb {
  if (!Number.isFinite(value)) return notFinite;
  if (!scale || !value) return paper;
  const stops = value < 0 ? negative : positive;
  const at = Math.min(1, Math.abs(value) / scale) * stops.length;
  const low = Math.min(stops.length - 1, Math.floor(at));
  const a = low === 0 ? paper : stops[low - 1]!;
  const b = stops[low]!;
  const share = at - low;
  return [between(a[0], b[0], share), between(a[1], b[1], share), between(a[2], b[2], share)];
}

function between(from: number, to: number, share: number): number {
  return Math.round(from + share * (to - from));
}

/** Steps from the paper to the strongest colour: more than a channel of eight bits tells apart. */
const STEPS = 1024;
const made = new WeakMap<Palette, Uint32Array>();

/** The pixel of each number between -scale and scale, looked up: the heads of one block ask 400,000 times. */
export function tones(scale: number, palette: Palette): (value: number) => number {
  const table = made.get(palette) ?? Uint32Array.from({ length: 2 * STEPS + 1 }, (_, at) => packedPixel(colour(at - STEPS, STEPS, palette)));
  made.set(palette, table);
  const odd = packedPixel(palette.notFinite);
  return (value) => {
    if (!Number.isFinite(value)) return odd;
    const share = scale ? Math.max(-1, Math.min(1, value / scale)) : 0;
    return table[STEPS + Math.round(STEPS * share)]!;
  };
}

/** A pixel of an ImageData as one number of 32 bits, little-endian. */
export function packedPixel([red, green, blue]: Rgb, alpha = 255): number {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

export function css([red, green, blue]: Rgb): string {
  return `rgb(${red},${green},${blue})`;
}

/** Black or white, whichever is read better on this colour: 4.5 to 1 at least. */
export function inkOn(colour: Rgb): string {
  const [red, green, blue] = colour.map((part) => ((part / 255 + 0.055) / 1.055) ** 2.4) as Rgb;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}
