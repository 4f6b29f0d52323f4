// Text of a run, which may hold anything: shown as it is, never as markup.

/** Blanks and control characters as letters that can be seen. */
export function visible(text: string): string {
  return printable(text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥"));
}

/** Control characters, and those that turn the direction of writing, as letters that can be seen. */
export function printable(text: string): string {
  return text
    .replace(/[\u0000-\u001f]/g, (letter) => String.fromCharCode(0x2400 + letter.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "�");
}

/** One token. */
export function Token({ text }: { text: string }) {
  return <span class="token">{visible(text)}</span>;
}
