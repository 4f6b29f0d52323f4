// Numbers as formats store them, bit by bit: the same as limpid.primer.stored, which a test holds it to.

interface Format {
  exponent: number;
  fraction: number;
  /** Whether its highest exponent is kept for infinity; else only its last pattern is no number. */
  infinite: boolean;
  /** Whether a number comes to it by way of float32, as ml_dtypes and PyTorch convert. */
  narrowed: boolean;
}

export const FORMATS: Record<string, Format> = {
  float32: { exponent: 8, fraction: 23, infinite: true, narrowed: false },
  bfloat16: { exponent: 8, fraction: 7, infinite: true, narrowed: true },
  float16: { exponent: 5, fraction: 10, infinite: true, narrowed: false },
  "float8 e4m3": { exponent: 4, fraction: 3, infinite: false, narrowed: true },
  "float8 e5m2": { exponent: 5, fraction: 2, infinite: true, narrowed: true },
};

export interface Stored {
  sign: string;
  exponent: string;
  fraction: string;
  value: number;
}

/** The bits of the nearest number of a format, in the middle between two of the one whose last bit is 0. */
export function bits(typed: number, name: string): Stored {
  const format = FORMATS[name];
  if (!format) throw new RangeError(`no format is called ${name}`);
  const { exponent, fraction, infinite, narrowed } = format;
  const given = narrowed ? Math.fround(typed) : typed;
  const bias = 2 ** (exponent - 1) - 1;
  const power = Math.max(exponentOf(given), 1 - bias);
  const unit = 2 ** (power - fraction);
  const counted = halfToEven(Math.abs(given) / unit);
  const size = counted * unit;
  const beyond = infinite ? 2 ** (bias + 1) : (2 - 2 ** -fraction) * 2 ** (bias + 1);
  const sign = given < 0 || Object.is(given, -0) ? "1" : "0";
  if (!(size < beyond)) {
    const last = infinite ? "0" : "1";
    return { sign, exponent: "1".repeat(exponent), fraction: last.repeat(fraction), value: infinite ? (sign === "1" ? -Infinity : Infinity) : NaN };
  }
  const carried = counted >= 2 ** (fraction + 1); // rounded up to the next power
  const stands = counted < 2 ** fraction ? 0 : power + bias + (carried ? 1 : 0);
  const rest = carried ? 0 : counted % 2 ** fraction;
  return { sign, exponent: padded(stands, exponent), fraction: padded(rest, fraction), value: sign === "1" ? -size : size };
}

/** Of the power of two at or below a number's size. */
function exponentOf(value: number): number {
  if (value === 0 || !Number.isFinite(value)) return -Infinity;
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  return ((view.getUint16(0) >> 4) & 0x7ff) - 1023;
}

/** To the nearest whole number, halves to the even one. */
function halfToEven(value: number): number {
  const down = Math.floor(value);
  const rest = value - down;
  return rest > 0.5 || (rest === 0.5 && down % 2 === 1) ? down + 1 : down;
}

function padded(value: number, length: number): string {
  return value.toString(2).padStart(length, "0");
}
