// The page inside a notebook cell: a frame without an origin, whose questions the kernel answers.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Channel } from "./source/kernel";

/** The notebook's end, as soon as it says hello. */
export function opened(): Promise<Channel> {
  return new Promise((resolve) => {
    addEventListener("message", ({ data, source, ports: [port] }: MessageEvent<{ limpid?: string }>) => {
      if (source !== parent || !port || typeof data.limpid !== "string") return;
      location.hash = data.limpid;
      const channel = new Channel(port);
      addEventListener("hashchange", () => channel.tell({ at: location.hash }));
      resolve(channel);
    });
  });
}

/** Tells how high the page is, and takes the whole window where it is asked to. */
export function Frame({ channel }: { channel: Channel }) {
  const full = useSignal(false);
  const set = (wanted: boolean) => {
    full.value = wanted;
    channel.tell({ full: wanted });
  };
  useEffect(() => {
    const page = document.getElementById("limpid");
    if (!page) return;
    const sized = new ResizeObserver(() => channel.tell({ height: Math.ceil(page.getBoundingClientRect().height) }));
    sized.observe(page);
    const leave = (event: KeyboardEvent) => event.key === "Escape" && full.value && set(false);
    addEventListener("keydown", leave);
    return () => {
      sized.disconnect();
      removeEventListener("keydown", leave);
    };
  }, []);
  return (
    <button type="button" class="frame-size" onClick={() => set(!full.value)}>
      {full.value ? "back to the cell" : "full size"}
    </button>
  );
}
