// Who moved the loss, or a number of the gradient: each module as wide as what its calls moved it by, whichever way; its parts and operations below it.
import { useSignal } from "@preact/signals";
import { Fragment } from "preact";
import { useRef } from "preact/hooks";
import type { RecordingDocument } from "../documents";
import { colour, css, inkOn, palette } from "../parts/colours";
import { useWidth } from "../parts/width";
import { operation } from "./call";
import { type Moved, plus } from "./recording";

/** A module, or an operation in it: what it moved the number by, and the sum of sizes, whichever way. */
export interface Part {
  name: string;
  path: string;
  moved: number;
  size: number;
  parts: Part[];
  /** The call that moved it most. */
  call: number;
  most: number;
}

interface Placed {
  part: Part;
  parent: Part | null;
  depth: number;
  left: number;
  width: number;
}

const HEIGHT = 24;
/** Pixels below which a part is left out. */
const LEAST = 2;
const LETTER = 7;
/** Short of the strongest colours, on which frames are hard to see. */
const STRONGEST = 1.5;

export function Flame({ recording, moved, choose }: { recording: RecordingDocument; moved: Moved; choose: (call: number) => void }) {
  const root = whole(recording, moved);
  const within = useSignal<Part>(root);
  const at = useSignal<Part>(within.value);
  const [width, box] = useWidth<HTMLDivElement>(280, 1360);
  const svg = useRef<SVGSVGElement>(null);
  const placed = laidOut(within.value, width);
  const focused = placed.some(({ part }) => part.path === at.value.path) ? at.value.path : within.value.path;
  const rows = Math.max(...placed.map(({ depth }) => depth)) + 1;
  const colours = palette();
  const move = (to: Placed | undefined) => {
    if (to) svg.current?.querySelectorAll<SVGGElement>("g")[placed.indexOf(to)]?.focus();
  };
  const key = (event: KeyboardEvent, here: Placed) => {
    const beside = placed.filter(({ depth }) => depth === here.depth);
    const place = beside.indexOf(here);
    const to: Record<string, () => Placed | undefined> = {
      ArrowRight: () => beside[place + 1],
      ArrowLeft: () => beside[place - 1],
      ArrowDown: () => placed.find(({ parent }) => parent === here.part),
      ArrowUp: () => placed.find(({ part }) => part === here.parent),
    };
    if (event.key in to) move(to[event.key]!());
    else if (event.key === "Enter" || event.key === " ") press(here);
    else if (event.key === "Escape") within.value = at.value = root;
    else return;
    event.preventDefault();
  };
  const press = ({ part }: Placed) => {
    at.value = part;
    choose(part.call);
    if (part.parts.length && part !== within.value) within.value = part;
    else if (part === within.value) within.value = root;
  };
  const shown = placed.find(({ part }) => part.path === focused)?.part ?? root;
  return (
    <figure class="flame" ref={box}>
      <svg ref={svg} width={width} height={rows * HEIGHT} role="group" aria-label={`what moved ${moved.of}, by module and operation`}>
        {placed.map((one) => {
          const { part, depth, left } = one;
          const fill = colour(part.moved, STRONGEST * part.size, colours);
          const room = Math.floor((one.width - 8) / LETTER);
          return (
            <Fragment key={part.path}>
              <g
                role="button"
                tabIndex={part.path === focused ? 0 : -1}
                aria-label={`${part.path || "the whole step"} moved ${moved.of} by ${plus(part.moved)}`}
                transform={`translate(${left},${depth * HEIGHT})`}
                onClick={() => press(one)}
                onFocus={() => (at.value = part)}
                onMouseEnter={() => (at.value = part)}
                onKeyDown={(event) => key(event, one)}
              >
                <rect width={Math.max(one.width - 1, 1)} height={HEIGHT - 2} fill={css(fill)} />
              </g>
              {room > 2 && (
                <text x={left + 4} y={depth * HEIGHT + 16} fill={inkOn(fill)} aria-hidden="true">
                  {part.name.length > room ? `${part.name.slice(0, room - 1)}…` : part.name}
                </text>
              )}
            </Fragment>
          );
        })}
      </svg>
      <figcaption>
        <output>
          {shown.path || "the whole step"}: {plus(shown.moved)}
          {shown.size > Math.abs(shown.moved) * 1.001 && `, of ${plus(shown.size)} whichever way`}
        </output>
        <span class="quiet"> Teal raised {moved.of}, brown lowered it, pale cancelled. Press a part to see it alone, again for all.</span>
      </figcaption>
    </figure>
  );
}

/** Modules, then operations, with what they moved. */
function whole({ calls }: RecordingDocument, { by }: Moved): Part {
  const root = made("the whole step", "");
  for (const call of calls) {
    const error = by.get(call.number) ?? 0;
    if (!error || !Number.isFinite(error)) continue;
    const names = [...(call.module ? call.module.split(".") : ["(loss)"]), operation(call.operation)];
    let at = root;
    add(at, error, call.number);
    for (const [place, name] of names.entries()) {
      const isOperation = place === names.length - 1;
      const path = isOperation ? `${at.path}: ${name}` : at.path ? `${at.path}.${name}` : name;
      let below = at.parts.find((one) => one.path === path);
      if (!below) at.parts.push((below = made(name, path)));
      at = below;
      add(at, error, call.number);
    }
  }
  return root;
}

function made(name: string, path: string): Part {
  return { name, path, moved: 0, size: 0, parts: [], call: 0, most: 0 };
}

function add(part: Part, error: number, call: number): void {
  part.moved += error;
  part.size += Math.abs(error);
  if (Math.abs(error) > part.most) [part.most, part.call] = [Math.abs(error), call];
}

function laidOut(root: Part, width: number): Placed[] {
  const placed: Placed[] = [];
  const place = (part: Part, parent: Part | null, depth: number, left: number, wide: number) => {
    if (wide < LEAST) return;
    placed.push({ part, parent, depth, left, width: wide });
    let at = left;
    for (const below of part.parts) {
      const share = (wide * below.size) / (part.size || 1);
      place(below, part, depth + 1, at, share);
      at += share;
    }
  };
  place(root, null, 0, 0, width);
  return placed;
}
