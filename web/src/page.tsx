// What stands around every view: the way to the others, and what went wrong.
import { signal, useSignal } from "@preact/signals";
import { type ComponentChildren, type ComponentType, render } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { parse, print, type Address } from "./address";
import { remember } from "./opened";
import type { Source } from "./source/source";
import "./style/base.css";

export interface ViewProps<A extends Address = Address> {
  source: Source;
  address: A;
}

/** A view for each kind of address. */
export type Views = Partial<{ [V in Address["view"]]: ComponentType<ViewProps<Extract<Address, { view: V }>>> }>;

/** A link to a view that stands at the top of the page. */
export interface Link {
  to: Address;
  text: string;
}

const address = signal<Address>(parse(location.hash));

interface Props {
  source: Source;
  views: Views;
  links: Link[];
  home: Address;
  /** Stands at the end of the links. */
  tools?: ComponentChildren;
}

function Page({ source, views, links, home, tools }: Props) {
  const at = address.value;
  const View = views[at.view] as ComponentType<ViewProps> | undefined;
  const failed = useSignal<string | null>(null);
  useLayoutEffect(() => {
    failed.value = null;
    const tell = (event: PromiseRejectionEvent) => {
      failed.value = event.reason instanceof Error ? event.reason.message : String(event.reason);
      event.preventDefault();
    };
    addEventListener("unhandledrejection", tell);
    return () => removeEventListener("unhandledrejection", tell);
  }, [at]);
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <header class="top">
        <a class="home" href={print(home)}>
          limpid
        </a>
        <nav aria-label="views">
          {links.map(({ to, text }) => (
            <a key={text} href={print(to)} {...(to.view === at.view ? { "aria-current": "page" as const } : {})}>
              {text}
            </a>
          ))}
        </nav>
        {tools}
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

/** Draw the page, and follow the address. */
export function draw(props: Props): void {
  const root = document.getElementById("limpid");
  if (!root) return;
  const follow = () => remember((address.value = parse(location.hash)));
  follow();
  addEventListener("hashchange", follow);
  render(<Page {...props} />, root);
}
