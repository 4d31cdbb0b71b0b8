// What the reader has chosen, as the fragment of the page's address, and back.

export function toFragment(state) {
  const [key, query] = state.pairs[state.group] || [];
  const views = Object.entries(state.views).map(
    ([id, { x, y, scale }]) => `${id}~${x.toFixed(1)}~${y.toFixed(1)}~${scale.toFixed(3)}`,
  );
  const parts = {
    group: state.group,
    beside: state.beside,
    pair: key === undefined ? "" : `${key}-${query}`,
    share: state.percentage,
    pick: state.picking,
    pin: state.pinned ? `${state.pinned.id}~${state.pinned.item}` : "",
    view: views.join(","),
  };
  const filled = Object.entries(parts).filter(([, value]) => value !== "");
  return filled.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
}

// Only well-formed parts are read; the page checks that what they name exists.
export function fromFragment(text) {
  const parts = new URLSearchParams(text.replace(/^#/, ""));
  const read = { views: {} };
  const group = parts.get("group")?.match(/^[\w-]+$/);
  if (group) read.group = group[0];
  const beside = parts.get("beside")?.match(/^[\w-]+$/);
  if (beside) read.beside = beside[0];
  const pair = parts.get("pair")?.match(/^(\d+)-(\d+)$/);
  if (pair) read.pair = [Number(pair[1]), Number(pair[2])];
  const share = parts.get("share")?.match(/^\d+$/);
  if (share) read.percentage = Math.min(100, Math.max(1, Number(share[0])));
  const picking = parts.get("pick")?.match(/^(key|query)$/);
  if (picking) read.picking = picking[0];
  const pinned = parts.get("pin")?.match(/^([\w-]+)~(.+)$/);
  if (pinned) read.pinned = { id: pinned[1], item: pinned[2] };
  for (const part of (parts.get("view") || "").split(",")) {
    const view = part.match(/^([\w-]+)~(-?[\d.]+)~(-?[\d.]+)~([\d.]+)$/);
    if (!view) continue;
    const [x, y, scale] = view.slice(2).map(Number);
    if (Number.isFinite(x + y + scale) && scale > 0) read.views[view[1]] = { x, y, scale };
  }
  return read;
}
