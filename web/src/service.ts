// What is asked of the server beside one step: answers that a component waits for, and long jobs.
import { type Signal, signal } from "@preact/signals";
import { useLayoutEffect, useMemo } from "preact/hooks";

import type { JobDocument } from "./documents";
import type { Api, Source } from "./source/source";

export type Progress = (doing: string, share: number | null, job: Job) => void;

export type Answer<T> =
  | { state: "waiting"; doing: string; share: number | null }
  | { state: "refused"; reason: string }
  | { state: "here"; value: T };

/** What a server answers; a page that has none shows no view that needs it. */
export function apiOf({ api }: Source): Api {
  if (!api) throw new Error("this view needs limpid serve");
  return api;
}

export type Job = JobDocument;

/** Wait for a job that the server began; `progress` hears how far it is. */
export function finished(api: Api, job: Job, progress: Progress): Promise<void> {
  return new Promise((resolve, reject) => {
    const told = (now: Job): boolean => {
      progress(now.doing || now.what, now.total ? now.done / now.total : null, now);
      if (now.state === "done") resolve();
      if (now.state === "failed") reject(new Error(now.error || `${now.what} failed`));
      return now.state !== "running";
    };
    if (told(job)) return;
    const stop = api.events(`api/jobs/${encodeURIComponent(job.job)}/events`, (_, data) => {
      if (told(data as Job)) stop();
    });
  });
}

/** Something is not there yet, and the server can make it. */
export class Missing extends Error {}

/** An answer; what has to be made before it is made by a job of the server, once. */
export async function having<T>(api: Api, ask: () => Promise<T>, make: string, body: unknown, progress: Progress): Promise<T> {
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof Missing)) throw error;
    await finished(api, await api.post<Job>(make, body), progress);
    return ask();
  }
}

/** The answer to GET, or to POST where there is a body, while a component stands; null asks nothing.
 *  What GET lacks is made by what `make` posts. */
export function useAnswer<T>(api: Api, path: string | null, body?: unknown, make?: { path: string; body: unknown }): Signal<Answer<T>> {
  const asked = body === undefined ? undefined : JSON.stringify(body);
  const answer = useMemo(() => signal<Answer<T>>({ state: "waiting", doing: "", share: null }), [path, asked]);
  useLayoutEffect(() => {
    let wanted = path !== null;
    if (path === null) return;
    const heard: Progress = (doing, share) => {
      if (wanted) answer.value = { state: "waiting", doing, share };
    };
    const get = () => api.get<T>(path);
    const answered = body !== undefined ? api.post<T>(path, body) : make ? having(api, get, make.path, make.body, heard) : get();
    answered.then(
      (value) => {
        if (wanted) answer.value = { state: "here", value };
      },
      (error: unknown) => {
        if (wanted) answer.value = { state: "refused", reason: reasonOf(error) };
      },
    );
    return () => {
      wanted = false;
    };
  }, [path, asked]);
  return answer;
}

export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Little-endian float32 numbers that travel in JSON as base64. */
export function floats(text: string): Float32Array {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return new Float32Array(bytes.buffer);
}
