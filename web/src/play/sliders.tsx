// How the next token is chosen: each slider moves the distribution at once.
import { Slider } from "../parts/form";
import { PLAIN, type Sampling } from "./sampling";

interface Props {
  sampling: Sampling;
  vocabulary: number;
  onSampling: (sampling: Sampling) => void;
}

export function Sliders({ sampling, vocabulary, onSampling }: Props) {
  const put = (change: Partial<Sampling>) => onSampling({ ...sampling, ...change });
  const most = Math.min(200, vocabulary);
  return (
    <div class="sliders">
      <Slider
        label="temperature"
        hint="logits are divided by it; 0 takes the likeliest"
        value={sampling.temperature}
        shown={sampling.temperature === 0 ? "0: the likeliest" : sampling.temperature.toFixed(2)}
        min={0}
        max={2}
        step={0.05}
        onValue={(temperature) => put({ temperature })}
      />
      <Slider label="top-k" hint="so many of the likeliest stay" value={sampling.topK || most} shown={sampling.topK ? String(sampling.topK) : "all"} min={1} max={most} step={1} onValue={(k) => put({ topK: k === most ? 0 : k })} />
      <Slider label="top-p" hint="the likeliest that together reach this probability stay" value={sampling.topP} shown={sampling.topP.toFixed(2)} min={0.05} max={1} step={0.01} onValue={(topP) => put({ topP })} />
      <Slider label="min-p" hint="tokens below this share of the likeliest one's probability go" value={sampling.minP} shown={sampling.minP.toFixed(2)} min={0} max={0.5} step={0.01} onValue={(minP) => put({ minP })} />
      <button type="button" onClick={() => onSampling(PLAIN)}>reset</button>
    </div>
  );
}
