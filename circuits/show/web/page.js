// Columns, what the reader chooses, and drawing again.

const AXES = "Q ↑  K →"; // how every map is to be read

const columns = data.circuits.map(buildColumn);

function buildColumn(circuit, index) {
  const id = (part) => `${part}-${index}`;
  const column = { circuit, index, shown: withGaps(circuit) };
  column.picture = shape("svg", { class: "picture", role: "img" });
  column.sentence = element("div", { class: "sentence", role: "toolbar", "aria-label": "Tokens" });
  column.stage = element("div", { class: "stage" }, column.picture, column.sentence);
  column.status = element("p", { class: "status", role: "status" });
  column.chips = element("div", { class: "chips", role: "group", "aria-label": "Mappings in this file" });
  column.carriers = element("div", { class: "tiles", role: "group", "aria-labelledby": id("carriers") });
  column.curve = shape("svg", { class: "curve", role: "img" });
  column.effects = element("div", { class: "effects", role: "group", "aria-labelledby": id("effects") });
  column.scale = element("p", { class: "scale" });
  column.controls = element("dl", { class: "facts" });
  column.inspector = buildInspector(column);
  const section = element(
    "section",
    { class: "column", "aria-labelledby": id("name") },
    heading(circuit, id("name")),
    element(
      "div",
      { class: "told" },
      element("div", { class: "card diagram" }, column.stage, column.status, column.chips),
      element("div", { class: "card trust" }, element("h3", { text: "Controls of this mapping" }), column.controls),
    ),
    element(
      "div",
      { class: "grids" },
      element(
        "div",
        { class: "card" },
        element("div", { class: "titles" }, element("h3", { id: id("carriers"), text: "Carriers" }), element("span", { class: "axes", "aria-hidden": "true", text: AXES })),
        column.carriers,
        element("h3", { text: "Greedy path" }),
        column.curve,
      ),
      element("div", { class: "card" }, element("h3", { id: id("effects"), text: "Effect of every head" }), column.effects, column.scale),
    ),
    element("div", { class: "beside" }, column.inspector.root),
  );
  buildSentence(column);
  buildEffects(column);
  rove(column.sentence, "button");
  rove(column.chips, "button");
  rove(column.carriers, "button", () => tilesInRow(column.carriers));
  rove(column.effects, "button", () => circuit.heads);
  document.getElementById("columns").append(section);
  return column;
}

function heading(circuit, id) {
  const share = circuit.edges ? (100 * circuit.open) / circuit.edges : 0;
  const open = `${circuit.open.toLocaleString("en")} of ${circuit.edges.toLocaleString("en")} edges open (${share < 10 ? share.toFixed(1) : Math.round(share)}%)`;
  return element(
    "div",
    { class: "heading" },
    element("h2", { id, dir: "auto", text: circuit.name }),
    element("p", { text: `${circuit.layers} × ${circuit.heads} heads · ${circuit.gated ? "gated" : "dense"} · ${open}` }),
  );
}

function buildInspector(column) {
  const inspector = {
    title: element("h3", {}),
    role: element("span", { class: "role" }),
    canvas: element("canvas", { role: "img" }),
    keys: element("div", { class: "labels keys", "aria-hidden": "true" }),
    queries: element("div", { class: "labels queries", "aria-hidden": "true" }),
    reading: element("p", { class: "reading" }),
    missing: element("p", { class: "missing", text: "This head's map was left out to keep the page small." }),
    facts: element("dl", { class: "facts" }),
  };
  const corner = element("span", { class: "corner", "aria-hidden": "true", text: AXES });
  inspector.map = element("div", { class: "large" }, inspector.queries, element("div", { class: "frame" }, inspector.canvas), corner, inspector.keys);
  inspector.root = element("div", { class: "card inspector", "aria-live": "polite" }, element("div", { class: "titles" }, inspector.title, inspector.role), inspector.map, inspector.missing, inspector.reading, inspector.facts);
  inspector.canvas.addEventListener("mousemove", (event) => {
    const { left, top, width, height } = inspector.canvas.getBoundingClientRect();
    const length = column.circuit.words.length;
    const cell = (at, size) => Math.min(length - 1, Math.max(0, Math.floor((at / size) * length)));
    readOut(column, length - 1 - cell(event.clientY - top, height), cell(event.clientX - left, width));
  });
  inspector.canvas.addEventListener("mouseleave", () => readOut(column, pairOf(column.circuit).query, pairOf(column.circuit).key));
  return inspector;
}

const tilesInRow = (container) => {
  const tops = [...container.children].map((child) => child.offsetTop);
  return tops.filter((top) => top === tops[0]).length;
};

// Choosing

function pick(circuit, at) {
  pairOf(circuit)[state.picking] = at;
  renderAll();
}

function choose(circuit, mapping) {
  Object.assign(pairOf(circuit), { key: mapping.key, query: mapping.query });
  renderAll();
}

// A head is shown in every column whose model has the same shape.
function inspect(circuit, head) {
  for (const column of columns) {
    const alike = column.circuit.layers === circuit.layers && column.circuit.heads === circuit.heads;
    if (!alike || state.inspected[column.index] === head) continue;
    state.inspected[column.index] = head;
    const mapping = mappingOf(column.circuit);
    renderInspector(column, mapping, carriersOf(mapping));
    markInspected(column);
  }
}

function markInspected(column) {
  for (const button of column.carriers.children) button.classList.toggle("shown", Number(button.dataset.head) === state.inspected[column.index]);
  column.cells.forEach((cell, head) => cell.classList.toggle("shown", head === state.inspected[column.index]));
}

// Drawing

function renderChips(column) {
  const { circuit } = column;
  const { key, query } = pairOf(circuit);
  const focused = column.chips.contains(document.activeElement);
  const chips = circuit.mappings.slice(0, 10).map((mapping) => {
    const chosen = mapping.key === key && mapping.query === query;
    const text = `${circuit.spelled[mapping.key]} → ${circuit.spelled[mapping.query]}`;
    const where = element("span", { class: "where", text: `${mapping.key}→${mapping.query}` });
    return element("button", { type: "button", class: chosen ? "chip chosen" : "chip", "aria-pressed": String(chosen), tabindex: -1, onclick: () => choose(circuit, mapping) }, element("span", { dir: "auto", text }), where, element("b", { text: number(mapping.total) }));
  });
  column.chips.replaceChildren(...chips);
  const current = chips.find((chip) => chip.classList.contains("chosen")) || chips[0];
  if (current) current.tabIndex = 0;
  if (focused && current) current.focus();
}

function statusOf(circuit, mapping, carriers) {
  const { key, query } = pairOf(circuit);
  const which = `${tokenAt(circuit, key)} → ${tokenAt(circuit, query)}`;
  if (key > query) return `${which} runs backwards: attention reads from a key at or before its query.`;
  if (!mapping) return `${which} carries nothing measurable, or was not measured: it is not in this file.`;
  if (!carriers.length) return `${which}: no head carries it (total ${number(mapping.total)}).`;
  const all = circuit.layers * circuit.heads;
  return `${carriers.length} of ${all} heads carry ${percent(modulationOf(mapping, carriers))} of ${which}; its total is ${number(mapping.total)} of the gap.`;
}

function renderColumn(column) {
  const { circuit } = column;
  const mapping = mappingOf(circuit);
  const carriers = carriersOf(mapping);
  if (state.inspected[column.index] === undefined) state.inspected[column.index] = carriers.length ? carriers[0][0] : 0;
  column.status.textContent = statusOf(circuit, mapping, carriers);
  column.status.classList.toggle("nothing", !mapping);
  renderSentence(column, mapping);
  renderDiagram(column, mapping, carriers);
  renderChips(column);
  renderCarriers(column, mapping, carriers);
  renderPath(column, mapping, carriers);
  renderEffects(column, mapping, carriers);
  renderInspector(column, mapping, carriers);
  renderControls(column, mapping, carriers);
  markInspected(column);
}

function renderAll() {
  document.getElementById("share-value").textContent = percent(state.share);
  columns.forEach(renderColumn);
}

// Wiring

document.getElementById("columns").classList.toggle("single", columns.length === 1);
const first = data.circuits[0];
document.getElementById("lede").textContent = `${first.metric} · prompt ${number(first.clean)}, counterfactual ${number(first.changed)} (${first.counterfactual})`;
document.getElementById("share").addEventListener("input", (event) => {
  state.share = Number(event.target.value) / 100;
  renderAll();
});
for (const radio of document.querySelectorAll("input[name=picking]")) {
  radio.addEventListener("change", () => {
    state.picking = radio.value;
    renderAll();
  });
}
darkScheme.addEventListener("change", renderAll);
window.addEventListener("resize", renderAll);
for (const [name, value] of [["beforeprint", true], ["afterprint", false]]) {
  window.addEventListener(name, () => {
    printing = value;
    renderAll();
  });
}
renderAll();
for (const column of columns) {
  const chosen = column.tokens.get(pairOf(column.circuit).key);
  if (chosen) column.stage.scrollLeft = chosen.button.offsetLeft - column.stage.clientWidth / 2;
}
