// How an array of any number of axes is laid out as matrices: what runs down, what runs along, what becomes panels.

export interface Layout {
  rows: number;
  columns: number;
  rowAxis: string;
  columnAxis: string;
  /** Leading indices of each panel: one a head, or one in all. */
  panels: { index: number[]; title: string }[];
  /** Axes that run along together, as head and feature do. */
  along: number[];
  /** Whether rows are an axis of their own, and not the single row of a vector. */
  isMatrix: boolean;
}

/** The layout of one row of the batch, or of a parameter. */
export function layout(shape: number[], axes: string[], row: number): Layout {
  const batched = axes[0] === "batch" && shape.length > 0;
  const lead = batched ? [Math.min(row, (shape[0] ?? 1) - 1)] : [];
  const rest = batched ? shape.slice(1) : shape;
  const names = batched ? axes.slice(1) : axes;
  if (rest.length > 2 && names[0] === "head") {
    const panels = Array.from({ length: rest[0] ?? 1 }, (_, head) => ({ index: [...lead, head], title: `head ${head}` }));
    return matrix(rest.slice(1), names.slice(1), panels);
  }
  return matrix(rest, names, [{ index: lead, title: "" }]);
}

function matrix(shape: number[], names: string[], panels: Layout["panels"]): Layout {
  const [first = 1, ...others] = shape;
  if (shape.length < 2)
    return { rows: 1, columns: first, rowAxis: "", columnAxis: names[0] ?? "", panels, along: shape, isMatrix: false };
  return {
    rows: first,
    columns: others.reduce((a, b) => a * b, 1),
    rowAxis: names[0] ?? "",
    columnAxis: names.slice(1).join(" · "),
    panels,
    along: others,
    isMatrix: true,
  };
}

/** The index of an entry from where it stands. */
export function indexAt(layout: Layout, panel: number[], row: number, column: number): number[] {
  const inner: number[] = [];
  for (const size of [...layout.along].reverse()) {
    inner.unshift(column % size);
    column = Math.floor(column / size);
  }
  return [...panel, ...(layout.isMatrix ? [row] : []), ...inner];
}

/** Where an entry stands: which panel, row and column; null where it is of another row of the batch. */
export function placeOf(layout: Layout, index: number[]): { panel: number; row: number; column: number } | null {
  const panel = layout.panels.findIndex((one) => one.index.every((i, axis) => index[axis] === i));
  if (panel < 0) return null;
  const inner = index.slice(layout.panels[panel]?.index.length ?? 0);
  const along = layout.isMatrix ? inner.slice(1) : inner;
  const column = along.reduce((at, i, axis) => at * (layout.along[axis] ?? 1) + i, 0);
  return { panel, row: layout.isMatrix ? (inner[0] ?? 0) : 0, column };
}
