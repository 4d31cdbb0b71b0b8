// Columns, the toolbar, and drawing again.

const AXES = "Q ↑  K →"; // how every map is to be read
const part = (id) => document.getElementById(id);

function buildColumn(circuit, index) {
  const id = (name) => `${name}-${index}`;
  const column = { circuit, index, shown: withGaps(circuit), inspected: null, ended: new AbortController() };
  column.verdict = element("div", { class: "verdict", role: "note" });
  column.picture = shape("svg", { class: "picture", role: "group", tabindex: -1 }); // what is in it has the place in the order
  column.stage = element("div", { class: "stage" }, column.picture);
  column.status = element("p", { class: "status", role: "status" });
  column.chips = element("div", { class: "chips", role: "group", "aria-label": "Mappings in this file" });
  column.carriers = element("div", { class: "tiles", role: "group", "aria-labelledby": id("carriers") });
  column.curve = shape("svg", { class: "curve", role: "img" });
  column.effects = element("div", { class: "effects", role: "group", "aria-labelledby": id("effects") });
  column.scale = element("p", { class: "scale" });
  column.controls = element("dl", { class: "facts" });
  column.inspector = buildInspector(column);
  buildStage(column);
  const axes = element("span", { class: "axes", "aria-hidden": "true", text: AXES });
  const carriers = element("div", { class: "titles" }, element("h3", { id: id("carriers"), text: "Carriers" }), axes);
  const diagram = element("div", { class: "card diagram" }, column.tools, column.stage, column.status, column.chips);
  const trust = element("div", { class: "card trust" }, element("h3", { text: "Controls of this mapping" }), column.controls);
  const maps = element("div", { class: "card" }, carriers, column.carriers, element("h3", { text: "Greedy path" }), column.curve);
  const effects = element("div", { class: "card" }, element("h3", { id: id("effects"), text: "Effect of every head" }), column.effects, column.scale);
  column.root = element(
    "section",
    { class: "column", "aria-labelledby": id("name") },
    heading(circuit, id("name")),
    column.verdict,
    element("div", { class: "told" }, diagram, trust),
    element("div", { class: "grids" }, maps, effects),
    element("div", { class: "beside" }, column.inspector.root),
  );
  buildEffects(column);
  rove(column.picture, ".thing");
  rove(column.chips, "button");
  rove(column.carriers, "button", () => tilesInRow(column.carriers));
  rove(column.effects, "button", () => circuit.heads);
  return column;
}

function heading(circuit, id) {
  const share = circuit.edges ? (100 * circuit.open) / circuit.edges : 0;
  const open = `${circuit.open.toLocaleString("en")} of ${circuit.edges.toLocaleString("en")} edges open (${share < 10 ? share.toFixed(1) : Math.round(share)}%)`;
  const shown = element("p", { text: `${circuit.layers} × ${circuit.heads} heads · ${circuit.gated ? "gated" : "dense"} · ${open}` });
  const asked = element("p", { class: "lede", text: `${circuit.metric} · prompt ${number(circuit.clean)}, counterfactual ${number(circuit.changed)} (${circuit.counterfactual})` });
  return element("div", { class: "heading" }, element("h2", { id, dir: "auto", text: circuit.name }), shown, asked);
}

const tilesInRow = (container) => {
  const tops = [...container.children].map((child) => child.offsetTop);
  return tops.filter((top) => top === tops[0]).length;
};

function renderChips(column) {
  const { circuit } = column;
  const [key, query] = pairOf(circuit);
  const chip = (mapping) => {
    const chosen = mapping.key === key && mapping.query === query;
    const words = element("span", { dir: "auto", text: `${circuit.spelled[mapping.key]} → ${circuit.spelled[mapping.query]}` });
    const where = element("span", { class: "where", text: `${mapping.key}→${mapping.query}` });
    const options = { type: "button", class: chosen ? "chip chosen" : "chip", "aria-pressed": String(chosen), tabindex: -1, "data-pair": `${mapping.key}-${mapping.query}`, onclick: () => choosePair(circuit, [mapping.key, mapping.query]) };
    return element("button", options, words, where, element("b", { text: number(mapping.total) }));
  };
  keepFocus(column.chips, ".chip", "data-pair", () => column.chips.replaceChildren(...circuit.mappings.slice(0, 12).map(chip)));
}

function renderColumn(column) {
  const { circuit } = column;
  const { mapping, carriers } = measured(circuit);
  column.status.textContent = statusOf(circuit, mapping, carriers, pairOf(circuit));
  column.status.classList.toggle("nothing", !mapping);
  renderVerdict(column);
  renderDiagram(column);
  renderChips(column);
  renderCarriers(column);
  renderPath(column);
  renderEffects(column);
  renderInspector(column);
  renderControls(column);
  markThings(column);
}

function renderThings() {
  for (const column of columns) {
    renderInspector(column);
    markThings(column);
  }
  keepAddress();
}

function renderAll() {
  part("share").value = Math.round(state.share * 100);
  part("share-value").textContent = percent(state.share);
  part(`pick-${state.picking}`).checked = true;
  columns.forEach(renderColumn);
  keepAddress();
}

// Show the circuits of the group that is chosen, side by side.
function showGroup() {
  for (const column of columns) column.ended.abort();
  columns = shownCircuits().map(buildColumn);
  part("columns").replaceChildren(...columns.map((column) => column.root));
  part("columns").classList.toggle("single", columns.length === 1);
  if (columns.length) {
    part("title").textContent = columns[0].circuit.prompt;
    document.title = columns[0].circuit.prompt;
  }
  renderPicker();
  renderAll();
  renderFound();
}

// The prompts of the page, where there are several.
function renderPicker() {
  const groups = new Map(data.circuits.map((circuit) => [groupOf(circuit), circuit]));
  const named = (circuit) => cut(circuit.prompt, 80) + (circuit.asked ? `, ${circuit.asked.map((at) => tokenAt(circuit, at)).join(" → ")}` : "");
  const options = [...groups].map(([group, circuit], at) => element("option", { value: group, text: `${at + 1}. ${named(circuit)}`, selected: group === state.group }));
  part("prompts").replaceChildren(...options);
  part("picker").hidden = groups.size < 2;
}

function chooseGroup(group) {
  state.group = group;
  state.pinned = null;
  showGroup();
}

function stepGroup(step) {
  const values = [...part("prompts").options].map((option) => option.value);
  chooseGroup(values[(values.indexOf(state.group) + step + values.length) % values.length]);
}

// Search

function renderFound() {
  const typed = part("search").value;
  const column = columns[0];
  const things = column ? found(column.circuit, typed).slice(0, 8) : [];
  const show = (thing) => {
    if (!isPinned(column.circuit, thing)) pin(column.circuit, thing);
    const drawn = column.picture.querySelector(`[data-thing="${thing}"]`);
    if (drawn) setView(column, viewWith(viewOf(column), frameOf(column), drawn.place, 40));
  };
  const item = (thing) => {
    const { circuit } = column;
    const text = kindOf(thing) === "head" ? nameOf(circuit, idOf(thing)) : tokenAt(circuit, idOf(thing));
    return element("button", { type: "button", class: "result", "data-thing": thing, title: sayThing(circuit, thing), text, onclick: () => show(thing) });
  };
  part("found").replaceChildren(...things.map(item));
  if (typed.trim() && !things.length) part("found").append(element("span", { class: "nothing", text: "no head or token of this name" }));
}

// The address

let keeping = false;
function keepAddress() {
  if (keeping) return;
  keeping = true;
  requestAnimationFrame(() => {
    keeping = false;
    history.replaceState(null, "", `#${toFragment(state)}`);
  });
}

function readAddress(address = location.hash) {
  const read = fromFragment(address);
  const groups = data.circuits.map(groupOf);
  state.group = groups.includes(read.group) ? read.group : groups[0] || "";
  state.share = read.share ?? data.share;
  state.picking = read.picking || "key";
  const first = shownCircuits()[0];
  if (first && read.pair && read.pair.every((at) => at < first.words.length)) state.pairs[state.group] = read.pair;
  const ids = data.circuits.map((circuit) => circuit.id);
  state.views = Object.fromEntries(Object.entries(read.views).filter(([id]) => ids.includes(id)));
  const owner = read.pinned && data.circuits.find((circuit) => circuit.id === read.pinned.id);
  state.pinned = owner && exists(owner, read.pinned.thing) ? read.pinned : null;
}

// Listeners

function listen() {
  part("share").addEventListener("input", (event) => {
    state.share = Number(event.target.value) / 100;
    renderAll();
  });
  for (const radio of document.querySelectorAll("input[name=picking]")) {
    radio.addEventListener("change", () => {
      state.picking = radio.value;
      renderAll();
    });
  }
  part("prompts").addEventListener("change", (event) => chooseGroup(event.target.value));
  part("before").addEventListener("click", () => stepGroup(-1));
  part("after").addEventListener("click", () => stepGroup(1));
  part("search").addEventListener("input", renderFound);
  part("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") part("found").querySelector("button")?.click();
  });
  part("link").addEventListener("click", () => copyText(location.href, part("link")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideHint();
    free();
  });
  window.addEventListener("hashchange", () => {
    if (location.hash.slice(1) === toFragment(state)) return;
    readAddress();
    showGroup();
  });
  darkScheme.addEventListener("change", renderAll);
  window.addEventListener("resize", renderAll);
  window.addEventListener("scroll", placeHint, { passive: true });
  for (const [name, value] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(name, () => {
      printing = value;
      renderAll();
    });
  }
}

async function copyText(text, button) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy it from the address bar";
  }
  setTimeout(() => (button.textContent = said), 1500);
}
