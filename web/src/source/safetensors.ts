// safetensors: eight bytes of length, a header in JSON, the numbers in little-endian order.

export type Numbers =
  | Float64Array | Float32Array | Int32Array | Int16Array | Int8Array | Uint8Array | BigInt64Array;

export interface Tensor {
  shape: number[];
  data: Exclude<Numbers, BigInt64Array>;
}

interface Header {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

export function read(file: ArrayBuffer): Map<string, Tensor> {
  const length = Number(new DataView(file).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, length))) as Record<string, Header>;
  const found = new Map<string, Tensor>();
  for (const [name, about] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, shape, data_offsets: [from, to] } = about;
    found.set(name, { shape, data: numbers(dtype, file, 8 + length + from, to - from) });
  }
  return found;
}

function numbers(dtype: string, file: ArrayBuffer, start: number, bytes: number): Tensor["data"] {
  const aligned = start % 8 === 0 ? file : file.slice(start, start + bytes);
  const at = start % 8 === 0 ? start : 0;
  switch (dtype) {
    case "F64":
      return new Float64Array(aligned, at, bytes / 8);
    case "F32":
      return new Float32Array(aligned, at, bytes / 4);
    case "BF16":
      return widened(new Uint16Array(aligned, at, bytes / 2));
    case "I64":
      return Float64Array.from(new BigInt64Array(aligned, at, bytes / 8), Number);
    case "I32":
      return new Int32Array(aligned, at, bytes / 4);
    case "U8":
    case "BOOL":
      return new Uint8Array(aligned, at, bytes);
    default:
      throw new Error(`a tensor of type ${dtype}: expected F64, F32, BF16, I64, I32, U8 or BOOL`);
  }
}

/** bfloat16 is the upper half of float32. */
function widened(halves: Uint16Array): Float32Array {
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) words[i] = (halves[i] ?? 0) << 16;
  return new Float32Array(words.buffer);
}
