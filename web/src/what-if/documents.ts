// What is changed of a step, and what the server says that it changes.
import type { Quantity } from "../compare/documents";
import type { Figure } from "../format";

export type Change =
  | { kind: "weight"; entry: string; value: number }
  | { kind: "token" | "target"; row: number; position: number; token: number }
  | { kind: "rate"; value: number }
  | { kind: "visible"; query: number; key: number; see: boolean }
  | { kind: "precision"; format: string };

export interface Changed extends Quantity {
  relative: Figure;
  largest: Figure;
  index: number[];
  before: Figure;
  after: Figure;
  not_finite: number;
}

export interface WhatIfDocument {
  result: string;
  loss: { before: Figure; after: Figure };
  rows: Changed[];
}

/** A change in a few words. */
export function said(change: Change): string {
  switch (change.kind) {
    case "weight":
      return `${change.entry} = ${change.value}`;
    case "token":
      return `token ${change.position} of row ${change.row} is ${change.token}`;
    case "target":
      return `target ${change.position} of row ${change.row} is ${change.token}`;
    case "rate":
      return `learning rate ${change.value}`;
    case "visible":
      return `query ${change.query} ${change.see ? "sees" : "does not see"} key ${change.key}`;
    case "precision":
      return `computed in ${change.format}`;
  }
}
