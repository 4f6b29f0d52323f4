// Going to an exercise whose question the server has not sent yet: its field takes the focus when it comes.
let wanted = "";

/** Put the focus into an exercise's answer, now or as soon as it is there. */
export function toAnswer(name: string): void {
  const field = document.getElementById(`answer-${name}`);
  wanted = field ? "" : name;
  field?.focus();
}

/** Called with each answer's field as it comes. */
export function arrived(name: string, field: HTMLElement | null): void {
  if (!field || wanted !== name) return;
  wanted = "";
  field.focus();
}
