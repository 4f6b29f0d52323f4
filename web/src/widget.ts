// The widget of a notebook cell, as anywidget takes it: the page in a frame of its own, and its questions passed on to the
// kernel. The frame has no origin: neither the notebook's styles nor its scripts reach in, nor anything out but messages.

interface Model {
  get(name: "home" | "still"): string;
  on(event: "msg:custom", heard: Heard): void;
  off(event: "msg:custom", heard: Heard): void;
  send(content: unknown): void;
}

type Heard = (said: Said, buffers: (DataView | ArrayBuffer)[]) => void;

/** What the kernel says in answer to the question with this id: bytes, whole or the next part of them. */
export interface Said {
  id: string;
  status: number;
  packed: boolean;
  more: boolean;
}

/** What the page asks of the kernel, or tells of itself. */
export type Asked =
  | { id: string; method: "GET" | "POST"; path: string; body: string }
  | { id: string; stop: true }
  | { height: number }
  | { at: string }
  | { full: boolean };

const HEIGHT = 560;
/** Milliseconds after which a kernel that says nothing is taken for none, as in a notebook that was saved. */
const PATIENCE = 500;
const SCHEME = "light dark";

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const box = document.createElement("div");
  const frame = document.createElement("iframe");
  frame.title = "limpid";
  // Without allow-forms no submit is heard; the page's policy lets no form send anything.
  frame.setAttribute("sandbox", "allow-scripts allow-downloads allow-forms");
  frame.style.cssText = "display:block;width:100%;height:100%;border:0;background:transparent";
  const size = (height: string) => (box.style.cssText = `height:${height};max-width:100%;overflow:hidden;resize:vertical`);
  size(`${HEIGHT}px`);
  box.append(frame);
  el.append(box);

  const own = crypto.randomUUID();
  let page = "";
  let at = model.get("home");
  let port: MessagePort | null = null;
  let grown = false;
  const ask = (asked: object) => {
    try {
      model.send(asked);
    } catch {
      still(); // a page without a kernel
    }
  };
  const still = () => {
    if (!page) frame.srcdoc = `<meta name="color-scheme" content="${SCHEME}"><style>${STILL}</style>${model.get("still")}`;
  };
  const waiting = setTimeout(still, PATIENCE);

  const heard: Heard = (said, buffers) => {
    if (!String(said.id).startsWith(own)) return; // another view's
    const bytes = bytesOf(buffers[0]);
    if (said.id !== own) return port?.postMessage({ said, bytes }, [bytes]);
    clearTimeout(waiting);
    void unpacked(bytes).then((text) => (frame.srcdoc = page = text));
  };
  const told = (asked: Asked) => {
    if ("height" in asked) {
      if (!grown && !box.matches(":popover-open")) size(`${Math.min(HEIGHT, Math.max(60, asked.height))}px`);
    } else if ("at" in asked) at = asked.at;
    else if ("full" in asked) full(box, asked.full);
    else ask({ ...asked, id: `${own} ${asked.id}` });
  };
  // also when the notebook takes the frame out and puts it back, which loads it anew
  frame.addEventListener("load", () => {
    if (!page) return;
    port?.close();
    const channel = new MessageChannel();
    port = channel.port1;
    port.onmessage = ({ data }: MessageEvent<Asked>) => told(data);
    frame.contentWindow?.postMessage({ limpid: at }, "*", [channel.port2]);
  });
  box.addEventListener("pointerdown", (event) => (grown ||= event.target === box)); // by its corner
  const unfollow = follow(el, (now) => (frame.style.colorScheme = now)); // which the frame's media queries follow
  model.on("msg:custom", heard);
  ask({ id: own, method: "GET", path: "page", body: "" });
  return () => {
    clearTimeout(waiting);
    model.off("msg:custom", heard);
    unfollow();
    port?.close();
  };
}

/** Over the whole window, above everything the notebook has, and back. */
function full(box: HTMLElement, wanted: boolean): void {
  if (!box.showPopover) return;
  if (wanted) {
    box.dataset.before = box.style.cssText;
    box.popover = "manual";
    box.style.cssText = "position:fixed;inset:0;width:100vw;height:100vh;max-width:none;max-height:none;margin:0;padding:0;border:0";
    box.showPopover();
  } else if (box.popover) {
    box.hidePopover();
    box.popover = null;
    box.style.cssText = box.dataset.before ?? "";
  }
}

/** Whether what stands behind an element is dark: the notebook's own theme, not the system's. */
function scheme(el: Element): "light" | "dark" {
  for (let at: Element | null = el; at; at = at.parentElement ?? hostOf(at)) {
    const [red = 0, green = 0, blue = 0, alpha = 1] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
    if (alpha > 0.5) return 0.299 * red + 0.587 * green + 0.114 * blue < 128 ? "dark" : "light";
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function hostOf(at: Element): Element | null {
  const root = at.getRootNode();
  return root instanceof ShadowRoot ? root.host : null;
}

/** Tell the scheme now, and whenever the notebook changes its theme. */
function follow(el: HTMLElement, tell: (scheme: "light" | "dark") => void): () => void {
  const look = () => tell(scheme(el));
  const settled = setTimeout(look); // once it is part of the document
  const changed = new MutationObserver(() => setTimeout(look, 100)); // once the theme's style sheet is there
  for (const one of [document.documentElement, document.body]) changed.observe(one, { attributes: true });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", look);
  return () => {
    clearTimeout(settled);
    changed.disconnect();
    system.removeEventListener("change", look);
  };
}

function bytesOf(buffer: DataView | ArrayBuffer | undefined): ArrayBuffer {
  if (!buffer) return new ArrayBuffer(0);
  if (buffer instanceof ArrayBuffer) return buffer;
  return buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength) as ArrayBuffer;
}

async function unpacked(bytes: ArrayBuffer): Promise<string> {
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const STILL = "body { font: 14px/1.5 system-ui, sans-serif; margin: 4px } td, th { text-align: left }";

export default { render };
