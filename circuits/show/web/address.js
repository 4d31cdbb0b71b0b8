// What is shown, as the fragment of an address, and back. Pure functions.

function toFragment(state) {
  const [key, query] = state.pairs[state.group] || [];
  const views = Object.entries(state.views).map(([id, { x, y, scale }]) => `${id}~${x.toFixed(1)}~${y.toFixed(1)}~${scale.toFixed(3)}`);
  const parts = {
    group: state.group,
    pair: key === undefined ? "" : `${key}-${query}`,
    share: Math.round(state.share * 100),
    pick: state.picking,
    pin: state.pinned ? `${state.pinned.id}~${state.pinned.thing}` : "",
    view: views.join(","),
  };
  const kept = Object.entries(parts).filter(([, value]) => value !== "");
  return kept.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
}

// Only what is well formed is taken; the page checks that it exists.
function fromFragment(text) {
  const parts = Object.fromEntries(new URLSearchParams(text.replace(/^#/, "")));
  const read = {};
  if (/^[\w-]+$/.test(parts.group || "")) read.group = parts.group;
  if (/^\d+-\d+$/.test(parts.pair || "")) read.pair = parts.pair.split("-").map(Number);
  if (/^\d+$/.test(parts.share || "")) read.share = Math.min(100, Math.max(1, Number(parts.share))) / 100;
  if (["key", "query"].includes(parts.pick)) read.picking = parts.pick;
  const pin = /^([\w-]+)~(.+)$/.exec(parts.pin || "");
  if (pin) read.pinned = { id: pin[1], thing: pin[2] };
  read.views = {};
  for (const view of (parts.view || "").split(",")) {
    const [, id, x, y, scale] = /^([\w-]+)~(-?[\d.]+)~(-?[\d.]+)~([\d.]+)$/.exec(view) || [];
    const numbers = { x: Number(x), y: Number(y), scale: Number(scale) };
    if (id && Object.values(numbers).every(Number.isFinite) && numbers.scale > 0) read.views[id] = numbers;
  }
  return read;
}
