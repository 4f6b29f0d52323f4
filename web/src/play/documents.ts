// What the server says of a prompt: its tokens, the scores of the next one, who attends to whom.

export interface Token {
  id: number;
  text: string;
  /** Given what is before it; null for the first one. */
  probability?: number | null;
}

export interface PlayDocument {
  model: string;
  prompt: Token[];
  /** The likeliest next tokens: they are the likeliest at every temperature. */
  next: { id: number; text: string; logit: number; probability: number }[];
  /** Of the whole vocabulary: float32 in base64. */
  logits: string;
  /** Of the last token: [layer][head][position]. */
  attention: number[][][] | null;
  context_length: number;
}

export interface PlayRequest {
  model: string;
  prompt?: string;
  /** In place of the prompt, to go on from it. */
  tokens?: number[];
  attention: true;
}
