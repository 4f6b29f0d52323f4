// The modules as their author wrote them, those that are alike folded; below one that is open, its parts and its calls.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import type { CallDocument, ModuleDocument, RecordingDocument } from "../documents";
import { general, numeric } from "../numbers";
import { operation, Share } from "./call";
import { plus } from "./recording";

interface Props {
  recording: RecordingDocument;
  chosen: number | null;
  choose: (call: number) => void;
}

/** Levels that stand open at first. */
const OPEN = 2;

export function Modules({ recording, chosen, choose }: Props) {
  const opened = useSignal(new Set(first(recording.folded, 0)));
  const toggle = (path: string) => {
    const now = new Set(opened.value);
    if (!now.delete(path)) now.add(path);
    opened.value = now;
  };
  const rows: ComponentChildren[] = [];
  const add = (module: ModuleDocument, depth: number) => {
    const isOpen = opened.value.has(module.path || module.name);
    rows.push(<Row key={module.path || module.name} module={module} depth={depth} isOpen={isOpen} toggle={() => toggle(module.path || module.name)} />);
    if (!isOpen) return;
    for (const part of module.modules) add(part, depth + 1);
    for (const call of ownCalls(recording, module))
      rows.push(<CallRow key={call.number} call={call} depth={depth + 1} isChosen={call.number === chosen} choose={() => choose(call.number)} />);
  };
  for (const module of recording.folded.modules) add(module, 0);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="modules and calls">
      <table class="modules">
        <thead>
          <tr>
            <th>module</th>
            <th class="number">calls</th>
            <th class="number">worst / bound</th>
            <th class="number">moved the loss by</th>
          </tr>
        </thead>
        <tbody>{rows}</tbody>
      </table>
    </div>
  );
}

function Row({ module, depth, isOpen, toggle }: { module: ModuleDocument; depth: number; isOpen: boolean; toggle: () => void }) {
  const share = module.share === null ? null : numeric(module.share);
  const mark = module.wrong ? "fails" : module.unchecked ? "unchecked" : "holds";
  const error = numeric(module.error);
  return (
    <tr>
      <th scope="row" style={`--depth:${depth}`}>
        <button class="plain fold" aria-expanded={isOpen} onClick={toggle}>
          {module.name}
        </button>
        {module.alike > 1 && (
          <span class="quiet">
            {" "}
            {module.alike} alike{isOpen && `, here ${module.path}`}
          </span>
        )}
      </th>
      <td class="number">{module.calls.toLocaleString("en")}</td>
      <td class="number">
        {module.unchecked > 0 && !module.wrong ? (
          <span class="mark unchecked">{module.unchecked} not checked</span>
        ) : share === null ? (
          <span class="quiet">moved</span>
        ) : (
          <span class={`mark ${mark}`}>
            {module.wrong ? "✗" : "✓"} {share === 0 ? "equal" : general(share, 2)}
          </span>
        )}
      </td>
      <td class="number">{error ? plus(error) : ""}</td>
    </tr>
  );
}

function CallRow({ call, depth, isChosen, choose }: { call: CallDocument; depth: number; isChosen: boolean; choose: () => void }) {
  return (
    <tr class={isChosen ? "chosen" : ""}>
      <th scope="row" style={`--depth:${depth}`}>
        <button class={`plain of-phase ${call.phase}`} aria-pressed={isChosen} onClick={choose}>
          <code>{operation(call.operation)}</code>
        </button>{" "}
        <span class="quiet">{call.phase}</span>
      </th>
      <td />
      <td class="number">
        <Share call={call} />
      </td>
      <td class="number">{numeric(call.error) ? plus(numeric(call.error)) : ""}</td>
    </tr>
  );
}

/** Calls that a module makes itself; of several that are alike, those of the one nearest to its bound. Movement is left out where it holds. */
function ownCalls(recording: RecordingDocument, module: ModuleDocument): CallDocument[] {
  const [loss, update] = ["(loss, clipping)", "(update)"];
  return recording.calls.filter((call) => {
    const at = call.module || (call.phase === "update" ? update : loss);
    return at === module.path && (call.wrong || call.check === "redone" || call.check === "unchecked");
  });
}

function first(module: ModuleDocument, depth: number): string[] {
  if (depth >= OPEN) return [];
  return module.modules.filter((part) => part.modules.length > 0).flatMap((part) => [part.path, ...first(part, depth + 1)]);
}
