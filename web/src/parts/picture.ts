// Pictures as files: a canvas with its title and keys as PNG, an SVG as it stands with the colours that hold now.
import { colour, type Line } from "./curve-drawing";
import { download } from "./save";

/** A curve with what is said above it. */
export function saveCanvas(drawn: HTMLCanvasElement, title: string, unit: string, lines: Line[]): void {
  const scale = devicePixelRatio || 1;
  const picture = document.createElement("canvas");
  const head = 30 * scale;
  picture.width = drawn.width + 16 * scale;
  picture.height = drawn.height + head + 8 * scale;
  const pen = picture.getContext("2d");
  if (!pen) return;
  pen.fillStyle = colour("var(--paper)");
  pen.fillRect(0, 0, picture.width, picture.height);
  pen.drawImage(drawn, 8 * scale, head);
  pen.textBaseline = "middle";
  let x = 12 * scale;
  const write = (text: string, ink: string, font: string): void => {
    pen.font = `${font} ${13 * scale}px system-ui, sans-serif`;
    pen.fillStyle = colour(ink);
    pen.fillText(text, x, head / 2);
    x += pen.measureText(text).width + 10 * scale;
  };
  write(title, "var(--ink)", "bold");
  write(unit, "var(--quiet)", "");
  for (const line of lines) {
    pen.fillStyle = colour(line.colour);
    pen.fillRect(x, head / 2 - scale, 14 * scale, 2 * scale);
    x += 18 * scale;
    write(line.label, "var(--ink)", "");
  }
  picture.toBlob((blob) => blob && download(`${title}.png`, blob));
}

/** An SVG of the page as a file of its own: every style that it took from the page is written into it. */
export function standalone(drawn: SVGSVGElement | null): string {
  if (!drawn) return "";
  const copy = drawn.cloneNode(true) as SVGSVGElement;
  const [from, to] = [drawn.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((element, at) => {
    const style = getComputedStyle(element);
    for (const property of KEPT) to[at]?.setAttribute(property, style.getPropertyValue(property));
  });
  const { width, height } = drawn.viewBox.baseVal;
  const paper = document.createElementNS(copy.namespaceURI, "rect");
  for (const [name, value] of Object.entries({ width, height, fill: colour("var(--paper)") })) paper.setAttribute(name, String(value));
  copy.prepend(paper);
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height })) copy.setAttribute(name, String(value));
  return new XMLSerializer().serializeToString(copy);
}

const KEPT = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "font-weight", "opacity",
  "text-anchor", "dominant-baseline",
];
