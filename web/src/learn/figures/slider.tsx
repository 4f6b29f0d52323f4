// A slider of a figure. It has no id: each figure is drawn by itself, and two would have the same.

interface Props {
  label: string;
  value: number;
  shown: string;
  min: number;
  max: number;
  step: number;
  onValue: (value: number) => void;
}

export function Slider({ label, value, shown, onValue, ...range }: Props) {
  return (
    <label class="field">
      <span>
        {label} <b>{shown}</b>
      </span>
      <input type="range" {...range} value={value} aria-label={label} aria-valuetext={shown} onInput={(event) => onValue(event.currentTarget.valueAsNumber)} />
    </label>
  );
}

/** A number as a chapter prints it: so many significant digits at most. */
export function plain(value: number, digits = 4): string {
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** A factor times a power of ten, 5.88 × 10²³; near one as it is. */
export function scientific(value: number, digits = 3): string {
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e4)) return plain(value, digits);
  const [factor = "", power = ""] = value.toExponential(digits - 1).split("e");
  const raised = [...String(Number(power))].map((one) => (one === "-" ? "⁻" : RAISED[Number(one)])).join("");
  const short = Number(factor);
  return short === 1 ? `10${raised}` : `${short} × 10${raised}`.replace("-", "−");
}
