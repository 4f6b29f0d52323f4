// A picture as a file: SVG as it is drawn, PNG from it.

export function Save({ name, svg }: { name: string; svg: () => string }) {
  return (
    <span class="save">
      <button type="button" aria-label={`save ${name} as SVG`} onClick={() => saveSvg(name, svg())}>
        SVG
      </button>
      <button type="button" aria-label={`save ${name} as PNG`} onClick={() => void savePng(name, svg())}>
        PNG
      </button>
    </span>
  );
}

export function saveSvg(name: string, text: string): void {
  download(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
}

/** Twice the size, for screens and print. */
export async function savePng(name: string, text: string): Promise<void> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth * 2;
  canvas.height = image.naturalHeight * 2;
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && download(`${name}.png`, blob));
}

export function download(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.download = name.replace(/[^\w.()[\],-]+/g, "_");
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
