// Pins over a curve, each at its place along the axis; those that would cover each other stand on top of each other.
import type { JSX } from "preact";
import type uPlot from "uplot";

export interface Pin {
  x: number;
  severity: "notice" | "warning" | "fault";
  label: string;
  key: string;
}

const WIDTH = 16;
const SIGNS = { notice: "i", warning: "!", fault: "×" };

export function Placed({ plot, pins, onPin }: { plot: uPlot; pins: Pin[]; onPin?: ((pin: Pin) => void) | undefined }): JSX.Element {
  const { min, max } = plot.scales.x ?? {};
  const last: number[] = [];
  const shown = pins
    .filter((pin) => min != null && max != null && pin.x >= min && pin.x <= max)
    .sort((a, b) => a.x - b.x)
    .map((pin) => {
      const left = plot.valToPos(pin.x, "x");
      let row = last.findIndex((end) => end + WIDTH <= left);
      if (row < 0) row = last.length < 5 ? last.length : 0;
      last[row] = left;
      return { pin, left, row };
    });
  const box = plot.over;
  return (
    <div class="pins" style={{ left: `${box.offsetLeft}px`, top: `${box.offsetTop}px`, "--tall": `${box.clientHeight}px` }}>
      {shown.map(({ pin, left, row }) => (
        <button
          key={pin.key}
          type="button"
          class={`pin ${pin.severity}`}
          style={{ left: `${left}px`, "--row": row }}
          aria-label={pin.label}
          title={pin.label}
          onClick={() => onPin?.(pin)}
        >
          {SIGNS[pin.severity]}
        </button>
      ))}
    </div>
  );
}
