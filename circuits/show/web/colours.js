// Colours of weights and effects, light and dark.

import { page, state } from "./state.js";

const DARK = {
  ATTENTION: [
    [0, "#171d26"],
    [0.2, "#223a5c"],
    [0.5, "#3a78bd"],
    [0.75, "#7fb4ec"],
    [1, "#dcecff"],
  ],
  EFFECT: [
    [-1, "#ffb86b"],
    [-0.5, "#a4621d"],
    [0, "#171d26"],
    [0.5, "#3a78bd"],
    [1, "#dcecff"],
  ],
};

export const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => darkScheme.matches && !state.printing;

// The red, green and blue of a value on a scale, between the two nearest of its stops.
function channels(value, name) {
  const stops = (isDark() ? DARK : page.scales)[name];
  const held = Math.min(Math.max(value, stops[0][0]), stops.at(-1)[0]);
  const upper = stops.findIndex(([at], index) => index > 0 && held <= at);
  const [low, start] = stops[upper - 1];
  const [high, end] = stops[upper];
  const part = (held - low) / (high - low);
  return [1, 3, 5].map((at) => {
    const from = parseInt(start.slice(at, at + 2), 16);
    const to = parseInt(end.slice(at, at + 2), 16);
    return Math.round(from + (to - from) * part);
  });
}

export const attentionColour = (weight) => `rgb(${channels(weight, "ATTENTION").join(" ")})`;
export const effectColour = (share) => `rgb(${channels(share, "EFFECT").join(" ")})`;

// The colours of the weights 0…255 as canvas pixels, computed once for each scheme.
const pixelTables = new Map();

export function attentionPixels() {
  if (!pixelTables.has(isDark())) {
    const bytes = [];
    for (let weight = 0; weight < 256; weight += 1) bytes.push(...channels(weight / 255, "ATTENTION"), 255);
    pixelTables.set(isDark(), new Uint32Array(new Uint8Array(bytes).buffer));
  }
  return pixelTables.get(isDark());
}
