// Colours of weights and effects, light and dark.

const DARK = {
  ATTENTION: [[0, "#171d26"], [0.2, "#223a5c"], [0.5, "#3a78bd"], [0.75, "#7fb4ec"], [1, "#dcecff"]],
  EFFECT: [[-1, "#ffb86b"], [-0.5, "#a4621d"], [0, "#171d26"], [0.5, "#3a78bd"], [1, "#dcecff"]],
};
let printing = false;
const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => darkScheme.matches && !printing;

function shade(value, name) {
  const stops = (isDark() ? DARK : data.scales)[name];
  const held = Math.min(Math.max(value, stops[0][0]), stops[stops.length - 1][0]);
  const upper = stops.findIndex(([at], index) => index > 0 && held <= at);
  const [[low, start], [high, end]] = [stops[upper - 1], stops[upper]];
  const part = (held - low) / (high - low);
  return [1, 3, 5].map((at) => {
    const [a, b] = [start, end].map((colour) => parseInt(colour.slice(at, at + 2), 16));
    return Math.round(a + (b - a) * part);
  });
}

const css = (channels) => `rgb(${channels.join(" ")})`;

// The colours of 0…255 as canvas pixels, for each scheme once.
const colourTables = new Map();
function attentionColours() {
  if (!colourTables.has(isDark())) {
    const channels = Array.from({ length: 256 }, (_, value) => [...shade(value / 255, "ATTENTION"), 255]);
    colourTables.set(isDark(), new Uint32Array(new Uint8Array(channels.flat()).buffer));
  }
  return colourTables.get(isDark());
}
