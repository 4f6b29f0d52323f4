// Two vectors to be dragged by their tips, or moved by sliders: their dot product and the cosine of their angle.
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";

import { angle, cosine, dot, norm } from "./mathematics";
import { plain, Slider } from "./slider";

type Pair = readonly [number, number];

const SIDE = 320;

export function Angle({ a: firstA, b: firstB }: { a: Pair; b: Pair }) {
  const most = Math.ceil(1.15 * Math.max(...[...firstA, ...firstB].map(Math.abs)));
  const unit = SIDE / 2 / (most * 1.08);
  const a = useSignal(firstA);
  const b = useSignal(firstB);
  const svg = useRef<SVGSVGElement>(null);
  const x = (value: number) => SIDE / 2 + value * unit;
  const y = (value: number) => SIDE / 2 - value * unit;
  const step = 10 ** Math.floor(Math.log10(most)) / 10;
  const rounded = (value: number) => Number((Math.round(Math.max(-most, Math.min(most, value)) / step) * step).toFixed(6));

  const drag = (vector: typeof a) => (event: PointerEvent) => {
    const tip = event.currentTarget as Element;
    if (event.type === "pointerdown") tip.setPointerCapture(event.pointerId);
    const box = svg.current?.getBoundingClientRect();
    if (!box || !tip.hasPointerCapture(event.pointerId)) return;
    const scaled = SIDE / box.width;
    vector.value = [
      rounded(((event.clientX - box.left) * scaled - SIDE / 2) / unit),
      rounded((SIDE / 2 - (event.clientY - box.top) * scaled) / unit),
    ];
  };
  const arrows = [
    { name: "a", vector: a, colour: "var(--first)" },
    { name: "b", vector: b, colour: "var(--second)" },
  ] as const;
  const shadow = dot(a.value, b.value) / dot(a.value, a.value);
  const zero = norm(a.value) === 0 || norm(b.value) === 0;
  return (
    <div class="moving">
      <svg ref={svg} viewBox={`0 0 ${SIDE} ${SIDE}`} width={SIDE} role="img" aria-label="two arrows from one point, a and b">
        <line x1={0} x2={SIDE} y1={y(0)} y2={y(0)} class="axis" />
        <line y1={0} y2={SIDE} x1={x(0)} x2={x(0)} class="axis" />
        {!zero && (
          <>
            <line x1={x(0)} y1={y(0)} x2={x(shadow * a.value[0])} y2={y(shadow * a.value[1])} class="shadow" />
            <line x1={x(b.value[0])} y1={y(b.value[1])} x2={x(shadow * a.value[0])} y2={y(shadow * a.value[1])} class="fall" />
          </>
        )}
        {arrows.map(({ name, vector, colour }) => {
          const [right, up] = vector.value;
          return (
            <g key={name} fill={colour} stroke={colour}>
              <line x1={x(0)} y1={y(0)} x2={x(right)} y2={y(up)} stroke-width={2.5} />
              <circle class="tip" cx={x(right)} cy={y(up)} r={7} />
              <text x={x(right) + 11} y={y(up) + 4} stroke="none">
                {name}
              </text>
              <circle class="grip" cx={x(right)} cy={y(up)} r={20} onPointerDown={drag(vector)} onPointerMove={drag(vector)} />
            </g>
          );
        })}
      </svg>
      <p class="reads" aria-live="polite">
        a · b = <output data-is="dot">{plain(dot(a.value, b.value))}</output>, cosine{" "}
        <output data-is="cosine">{zero ? "not defined" : plain(cosine(a.value, b.value))}</output>, angle{" "}
        <output data-is="angle">{zero ? "not defined" : `${plain(angle(a.value, b.value), 3)}°`}</output>
      </p>
      <div class="by-slider">
        {arrows.map(({ name, vector }) =>
          ([0, 1] as const).map((at) => (
            <Slider
              key={`${name}${at}`}
              label={`${name}, ${at ? "up" : "right"}`}
              value={vector.value[at]}
              shown={plain(vector.value[at], 3)}
              min={-most}
              max={most}
              step={step}
              onValue={(value) => (vector.value = at ? [vector.value[0], rounded(value)] : [rounded(value), vector.value[1]])}
            />
          )),
        )}
      </div>
    </div>
  );
}
