// The heads of a column: the carriers' maps, the map of effects, and the greedy path.

// A map with its query up (the row of query 0 is the lowest) and a red frame around the mapping's cell, whose
// shade is its weight; a cell too small to be seen is drawn larger than it is.
function mapOf(options = {}) {
  return element("span", { class: "map" }, element("canvas", options), element("i", { class: "spot", "aria-hidden": "true" }));
}

function paintMap(map, circuit, head) {
  const [canvas, spot] = map.children;
  const length = circuit.words.length;
  canvas.width = length;
  canvas.height = length;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(length, length);
  const pixels = new Uint32Array(picture.data.buffer);
  const colours = attentionColours();
  for (let row = 0; row < length; row += 1) {
    for (let column = 0; column < length; column += 1) pixels[(length - 1 - row) * length + column] = colours[weightAt(circuit, head, row, column) || 0];
  }
  context.putImageData(picture, 0, 0);
  const [key, query] = pairOf(circuit);
  spot.hidden = key > query;
  spot.style.left = `${(100 * (key + 0.5)) / length}%`;
  spot.style.bottom = `${(100 * (query + 0.5)) / length}%`;
  spot.style.width = `${100 / length}%`;
  spot.style.backgroundColor = css(shade((weightAt(circuit, head, query, key) || 0) / 255, "ATTENTION"));
}

function renderCarriers(column) {
  const { circuit } = column;
  const { mapping, carriers } = measured(circuit);
  const tile = ([head, joint]) => {
    const map = mapOf({ "aria-hidden": "true" });
    paintMap(map, circuit, head);
    const parts = [map, element("span", { class: "name", text: nameOf(circuit, head) }), element("span", { class: "joint", text: percent(joint / mapping.total) })];
    const made = element("button", { type: "button", class: "tile", tabindex: -1, "data-head": head, "data-thing": `head:${head}` }, ...parts);
    return follow(labelled(made, sayHead(circuit, mapping, head, carriers)), circuit, `head:${head}`);
  };
  keepFocus(column.carriers, ".tile", "data-head", () => column.carriers.replaceChildren(...carriers.map(tile)));
}

function renderPath(column) {
  const { curve } = column;
  const { mapping, carriers } = measured(column.circuit);
  curve.replaceChildren();
  curve.classList.toggle("empty", !mapping || !mapping.path.length);
  if (!mapping || !mapping.path.length) return curve.setAttribute("aria-label", "No head is on the path");
  const [width, height, left, bottom] = [320, 96, 38, 18];
  const shares = mapping.path.map(([, joint]) => joint / mapping.total);
  const top = Math.max(1, ...shares);
  const x = (count) => left + ((width - left - 8) * count) / mapping.path.length;
  const y = (share) => height - bottom - (height - bottom - 8) * Math.max(0, share / top);
  const points = [[0, 0], ...shares.map((share, at) => [at + 1, share])];
  curve.setAttribute("viewBox", `0 0 ${width} ${height}`);
  for (const share of [0, 0.5, 1]) {
    curve.append(shape("line", { class: "rule", x1: left, x2: width - 8, y1: y(share), y2: y(share) }));
    curve.append(shape("text", { class: "tick", x: left - 6, y: y(share) + 3.5, "text-anchor": "end" }, percent(share)));
  }
  curve.append(shape("line", { class: "wanted", x1: left, x2: width - 8, y1: y(state.share), y2: y(state.share) }));
  curve.append(shape("polyline", { class: "line", points: points.map(([count, share]) => `${x(count)},${y(share)}`).join(" ") }));
  if (carriers.length) curve.append(shape("circle", { class: "dot", cx: x(carriers.length), cy: y(shares[carriers.length - 1]), r: 4 }));
  curve.append(shape("text", { class: "tick", x: left, y: height - 4 }, "0 heads"));
  curve.append(shape("text", { class: "tick", x: width - 8, y: height - 4, "text-anchor": "end" }, `${mapping.path.length} heads on the path`));
  return curve.setAttribute("aria-label", `${carriers.length} heads reach ${percent(modulationOf(mapping, carriers))} of the total`);
}

function buildEffects(column) {
  const { circuit, effects } = column;
  effects.style.gridTemplateColumns = `auto repeat(${circuit.heads}, minmax(0, 1fr))`;
  effects.style.maxWidth = `${circuit.heads * 28 + 40}px`;
  effects.style.setProperty("--cell", `${Math.max(11, Math.min(22, Math.floor(330 / circuit.layers)))}px`);
  const axis = (text) => element("span", { class: "axis", text, "aria-hidden": "true" });
  effects.replaceChildren(axis("L \\ H"), ...Array.from({ length: circuit.heads }, (_, index) => axis(index)));
  column.cells = [];
  for (let head = 0; head < circuit.layers * circuit.heads; head += 1) {
    if (head % circuit.heads === 0) effects.append(axis(head / circuit.heads));
    const cell = element("button", { type: "button", class: "cell", tabindex: head ? -1 : 0, "data-head": head, "data-thing": `head:${head}` });
    column.cells.push(follow(cell, circuit, `head:${head}`));
    effects.append(cell);
  }
}

function renderEffects(column) {
  const { circuit } = column;
  const { mapping, carriers } = measured(circuit);
  const carrying = new Set(carriers.map(([head]) => head));
  const known = new Map((mapping ? mapping.heads : []).map(([head, effect]) => [head, effect]));
  const largest = Math.max(1e-9, ...[...known.values()].map(Math.abs));
  column.cells.forEach((cell, head) => {
    const effect = known.get(head);
    cell.style.backgroundColor = effect === undefined ? "" : css(shade(effect / largest, "EFFECT"));
    cell.classList.toggle("carrier", carrying.has(head));
    cell.setAttribute("aria-label", sayHead(circuit, mapping, head, carriers));
  });
  const stops = [-1, -0.5, 0, 0.5, 1].map((at) => css(shade(at, "EFFECT")));
  const ramp = element("i", { class: "ramp", "aria-hidden": "true" });
  ramp.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
  column.scale.replaceChildren(element("span", { text: `−${number(largest)}` }), ramp, element("span", { text: `+${number(largest)}` }));
  column.scale.hidden = !known.size;
}
