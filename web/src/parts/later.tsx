// A view whose script comes when it is first opened.
import { useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";

export function later<Props extends object>(load: () => Promise<ComponentType<Props>>): ComponentType<Props> {
  let found: ComponentType<Props> | null = null;
  return function Later(props: Props) {
    const View = useSignal(found);
    useEffect(() => {
      if (found === null) void load().then((loaded) => (View.value = found = loaded), gone);
    }, []);
    return View.value === null ? <p class="quiet loading">One moment…</p> : <View.value {...props} />;
  };
}

function gone(): never {
  throw new Error("a part of the page does not come: start limpid serve again, and reload");
}
