// Of each exercise of a page the numbers, and how to choose others: both stand in the address.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { print } from "../address";
import { FIRST, fromQuery, type Numbers, toQuery } from "./seeds";

export interface Chosen {
  numbers: Numbers;
  onNumbers: (numbers: Numbers) => void;
}

export function useChosen(chapter: string, query: string): (exercise: string) => Chosen {
  const all = useSignal(fromQuery(query));
  useEffect(() => {
    all.value = fromQuery(query);
  }, [query]);
  return (exercise) => ({
    numbers: all.value.get(exercise) ?? FIRST,
    onNumbers: (numbers) => {
      all.value = new Map(all.value).set(exercise, numbers);
      history.replaceState(null, "", print({ view: "learn", chapter, query: toQuery(all.value) }));
    },
  });
}
