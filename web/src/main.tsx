// The page: one view for each address.
import { signal, useSignal } from "@preact/signals";
import { render, type ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { parse, print, type Address } from "./address";
import { Equations } from "./equations/equations";
import { Http } from "./source/http";
import type { Source } from "./source/source";
import "./style/base.css";

export interface ViewProps<A extends Address = Address> {
  source: Source;
  address: A;
}

/** A view for each kind of address; a new view is a folder and a line here. */
const VIEWS: Partial<{ [V in Address["view"]]: ComponentType<ViewProps<Extract<Address, { view: V }>>> }> = {
  equations: Equations,
};

export const address = signal<Address>(parse(location.hash));
addEventListener("hashchange", () => (address.value = parse(location.hash)));

function Page({ source }: { source: Source }) {
  const at = address.value;
  const View = VIEWS[at.view] as ComponentType<ViewProps> | undefined;
  const failed = useSignal<string | null>(null);
  useEffect(() => {
    failed.value = null;
    const tell = (event: PromiseRejectionEvent) =>
      (failed.value = event.reason instanceof Error ? event.reason.message : String(event.reason));
    addEventListener("unhandledrejection", tell);
    return () => removeEventListener("unhandledrejection", tell);
  }, [at]);
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <header class="top">
        <a class="home" href="#/">
          limpid
        </a>
        <nav aria-label="views">
          <a href="#/equations">equations</a>
        </nav>
      </header>
      <main id="main" tabIndex={-1}>
        {failed.value !== null && <p role="alert">{failed.value}</p>}
        {View ? <View source={source} address={at} /> : <p role="alert">There is no view at {print(at)}.</p>}
      </main>
    </>
  );
}

/** The fragment is the address, so that a link within the page moves the focus itself. */
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

const root = document.getElementById("limpid");
if (root) render(<Page source={new Http()} />, root);
