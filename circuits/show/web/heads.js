// The heads of a column: the carriers' maps, the map of effects, the path, and one head large.

// A map with its query up: the row of query 0 is the lowest.
function paintMap(canvas, circuit, head) {
  const length = circuit.words.length;
  const { key, query } = pairOf(circuit);
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
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--red");
  const size = Math.max(1, Math.round(length / 60)); // a cell that can be seen also in a long prompt
  if (key <= query) context.fillRect(Math.min(key, length - size), Math.max(length - size - query, 0), size, size);
}

// The colours of 0…255 as canvas pixels, for each scheme once.
const colourTables = new Map();
function attentionColours() {
  if (!colourTables.has(isDark())) {
    const channels = Array.from({ length: 256 }, (_, value) => [...shade(value / 255, "ATTENTION"), 255]);
    colourTables.set(isDark(), new Uint32Array(new Uint8Array(channels.flat()).buffer));
  }
  return colourTables.get(isDark());
}

function renderCarriers(column, mapping, carriers) {
  const { circuit } = column;
  const tiles = carriers.map(([head, joint], at) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    paintMap(canvas, circuit, head);
    const told = effectOf(mapping, head);
    const label = `${nameOf(circuit, head)}, carrier ${at + 1}, effect ${number(told && told.effect)}, joint ${percent(joint / mapping.total)} of the total`;
    return element(
      "button",
      { type: "button", class: "tile", tabindex: at ? -1 : 0, "aria-label": label, "data-head": head, onmouseenter: () => inspect(circuit, head), onfocus: () => inspect(circuit, head), onclick: () => inspect(circuit, head) },
      canvas,
      element("span", { class: "name", text: nameOf(circuit, head) }),
      element("span", { class: "joint", text: percent(joint / mapping.total) }),
    );
  });
  column.carriers.replaceChildren(...tiles);
}

function renderPath(column, mapping, carriers) {
  const { curve } = column;
  curve.replaceChildren();
  if (!mapping || !mapping.path.length) return;
  const [width, height, left, bottom] = [320, 96, 34, 18];
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
  curve.setAttribute("aria-label", `${carriers.length} heads reach ${percent(modulationOf(mapping, carriers))} of the total`);
}

function buildEffects(column) {
  const { circuit, effects } = column;
  effects.style.gridTemplateColumns = `auto repeat(${circuit.heads}, minmax(0, 1fr))`;
  effects.style.maxWidth = `${circuit.heads * 28 + 40}px`;
  effects.style.setProperty("--cell", `${Math.max(11, Math.min(22, Math.floor(330 / circuit.layers)))}px`);
  const corner = element("span", { class: "axis", text: "L \\ H", "aria-hidden": "true" });
  const across = Array.from({ length: circuit.heads }, (_, index) => element("span", { class: "axis", text: index, "aria-hidden": "true" }));
  effects.replaceChildren(corner, ...across);
  column.cells = [];
  for (let head = 0; head < circuit.layers * circuit.heads; head += 1) {
    if (head % circuit.heads === 0) effects.append(element("span", { class: "axis", text: head / circuit.heads, "aria-hidden": "true" }));
    const show = () => inspect(circuit, head);
    const cell = element("button", { type: "button", class: "cell", tabindex: head ? -1 : 0, "data-head": head, onmouseenter: show, onfocus: show, onclick: show });
    column.cells.push(cell);
    effects.append(cell);
  }
}

function renderEffects(column, mapping, carriers) {
  const { circuit } = column;
  const carrying = new Set(carriers.map(([head]) => head));
  const known = new Map((mapping ? mapping.heads : []).map(([head, effect]) => [head, effect]));
  const largest = Math.max(1e-9, ...[...known.values()].map(Math.abs));
  column.cells.forEach((cell, head) => {
    const effect = known.get(head);
    cell.style.backgroundColor = effect === undefined ? "" : css(shade(effect / largest, "EFFECT"));
    cell.classList.toggle("carrier", carrying.has(head));
    const said = effect === undefined ? "no effect measured" : `effect ${number(effect)}`;
    cell.setAttribute("aria-label", `${nameOf(circuit, head)}, ${said}${carrying.has(head) ? ", carrier" : ""}`);
  });
  column.scale.replaceChildren(
    element("span", { text: `−${number(largest)}` }),
    element("i", { class: "ramp", "aria-hidden": "true" }),
    element("span", { text: `+${number(largest)}` }),
  );
  column.scale.hidden = !known.size;
  const stops = [-1, -0.5, 0, 0.5, 1].map((at) => css(shade(at, "EFFECT")));
  column.scale.querySelector(".ramp").style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
}

// One head, large

function renderInspector(column, mapping, carriers) {
  const { circuit, inspector } = column;
  const head = state.inspected[column.index];
  const place = carriers.findIndex(([index]) => index === head);
  inspector.title.textContent = nameOf(circuit, head);
  inspector.role.textContent = place >= 0 ? `carrier ${place + 1} of ${carriers.length}` : "not a carrier at this share";
  inspector.role.classList.toggle("carrier", place >= 0);
  const stored = circuit.slots.has(head);
  inspector.map.hidden = !stored;
  inspector.missing.hidden = stored;
  if (stored) renderLargeMap(column, head);
  const told = effectOf(mapping, head) || {};
  const weight = told.weight === undefined ? weightAt(circuit, head, pairOf(circuit).query, pairOf(circuit).key) / 255 : told.weight;
  const counterfactual = told.counterfactualWeight === undefined ? "" : ` → ${number(told.counterfactualWeight)}`;
  fillFacts(inspector.facts, [
    ["Effect", number(told.effect), "its message replaced by the counterfactual's"],
    ["Restore", number(told.restore), "its clean message put back"],
    ["Loading", told.loading === null ? "not measured" : number(told.loading), "the linear share, patterns frozen"],
    ["Weight", stored || told.weight !== undefined ? `${number(weight)}${counterfactual}` : "–", "attention on this edge, clean → counterfactual"],
  ]);
}

function renderLargeMap(column, head) {
  const { circuit, inspector } = column;
  const { key, query } = pairOf(circuit);
  const length = circuit.words.length;
  paintMap(inspector.canvas, circuit, head);
  inspector.canvas.setAttribute("aria-label", `Attention map of ${nameOf(circuit, head)}: query up, key to the right`);
  const labelled = length <= 24 ? Array.from({ length }, (_, at) => at) : [...new Set([key, query])].sort((a, b) => a - b);
  const labels = (axis) =>
    labelled.map((at) => {
      const chosen = axis === "key" ? at === key : at === query;
      const label = element("span", { class: chosen ? "chosen" : "", dir: "auto", text: circuit.spelled[at], title: tokenAt(circuit, at) });
      label.style[axis === "key" ? "left" : "bottom"] = `${(100 * (at + 0.5)) / length}%`;
      return label;
    });
  inspector.keys.replaceChildren(...labels("key"));
  inspector.queries.replaceChildren(...labels("query"));
  readOut(column, query, key);
}

function readOut(column, query, key) {
  const { circuit, inspector } = column;
  const weight = weightAt(circuit, state.inspected[column.index], query, key);
  inspector.reading.textContent = `${tokenAt(circuit, key)} → ${tokenAt(circuit, query)}: weight ${number(weight === null ? null : weight / 255)}`;
}

function renderControls(column, mapping, carriers) {
  const { circuit, controls } = column;
  if (!mapping) return fillFacts(controls, []);
  const { key } = mapping;
  const facts = [
    ["Total", number(mapping.total), "all heads of this mapping at once"],
    ["Restore", number(mapping.restore), "the total in the other direction"],
    ["Carriers", `${number(carriers.length ? carriers[carriers.length - 1][1] : 0)}`, `joint effect of ${carriers.length} heads`],
  ];
  const told = mapping.controls;
  if (told) {
    const others = told.key_totals.map((total, at) => [total, at]).filter(([, at]) => at !== key).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
    facts.push(["Random heads", number(told.random_mean), `as many as carry ${percent(told.share)}; 95th percentile ${number(told.random_p95)} of ${told.random_draws} draws`]);
    facts.push(["Sufficiency", number(told.sufficiency), `share that is left with only the carriers at ${percent(told.share)}`]);
    if (others.length) facts.push(["Next key", number(others[0][0]), `largest total of another key: ${tokenAt(circuit, others[0][1])}`]);
    facts.push(["Identity", told.identity === 0 ? "0" : told.identity.toExponential(0), "clean patched into clean; should be 0"]);
  } else {
    facts.push(["Controls", "–", "not measured for this mapping"]);
  }
  return fillFacts(controls, facts);
}

function fillFacts(list, facts) {
  list.replaceChildren(
    ...facts.map(([name, value, meaning]) =>
      element("div", {}, element("dt", { text: name }), element("dd", { class: "value", text: value }), element("dd", { class: "meaning", text: meaning }))),
  );
}
