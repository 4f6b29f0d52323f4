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
