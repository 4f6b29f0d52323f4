// The page inside one file: the recording that it holds.
import type { AgainDocument, RecordingDocument } from "../documents";
import type { Address } from "../address";
import { draw } from "../page";
import type { Api, Source } from "../source/source";
import "../style/recording.css";
import { Recording } from "./recording";

const home: Address = { view: "recording", name: "here" };

async function held(): Promise<RecordingDocument> {
  const letters = atob(document.getElementById("recording")?.textContent ?? "");
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const text = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  return JSON.parse(await text) as RecordingDocument;
}

/** A file cannot run a model. */
const again: AgainDocument = { why: "a file runs no model; keep the recording by --keep runs/NAME, and open it by limpid serve", model: "", precision: "", formats: [] };

function alone(): never {
  throw new Error("this file holds one recording, and nothing answers it");
}

const api = { get: async (path: string) => (path.endsWith("/again") ? again : held()), post: alone, bytes: alone, events: alone } as unknown as Api;
const source: Source = { step: alone, equations: alone, api, only: null };
if (!location.hash) history.replaceState(null, "", "#/recording/here");
draw({ source, home, links: [{ to: home, text: "the recording" }], views: { recording: Recording } });
