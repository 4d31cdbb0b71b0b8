// What the file holds, and questions to it. Nothing is computed about the model here.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { share: data.share, picking: "key", pairs: {}, inspected: {} };

for (const circuit of data.circuits) {
  const length = circuit.words.length;
  circuit.weights = Uint8Array.from(atob(circuit.maps.data), (letter) => letter.charCodeAt(0));
  circuit.slots = new Map(circuit.maps.heads.map((head, slot) => [head, slot]));
  circuit.triangle = (length * (length + 1)) / 2;
  const pair = circuit.asked || circuit.front || [0, length - 1];
  if (!(circuit.group in state.pairs)) state.pairs[circuit.group] = { key: pair[0], query: pair[1] };
}

const nameOf = (circuit, head) => `L${Math.floor(head / circuit.heads)}H${head % circuit.heads}`;
const pairOf = (circuit) => state.pairs[circuit.group];
const tokenAt = (circuit, at) => `${circuit.spelled[at]} (${at})`;
const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−"));
const percent = (value) => `${Math.round(value * 100)}%`;

function mappingOf(circuit) {
  const { key, query } = pairOf(circuit);
  return circuit.mappings.find((mapping) => mapping.key === key && mapping.query === query) || null;
}

// The greedy path up to the step that reaches the share of the total.
function carriersOf(mapping) {
  if (!mapping) return [];
  const reached = mapping.path.findIndex(([, joint]) => joint >= state.share * mapping.total - 1e-5);
  return reached < 0 ? mapping.path : mapping.path.slice(0, reached + 1);
}

const modulationOf = (mapping, carriers) => (carriers.length ? carriers[carriers.length - 1][1] / mapping.total : 0);

function effectOf(mapping, head) {
  const known = mapping && mapping.heads.find(([index]) => index === head);
  if (!known) return null;
  const [, effect, restore, loading, weight, counterfactualWeight] = known;
  return { effect, restore, loading, weight, counterfactualWeight };
}

// The weight of a head's map in 0…255; null where the page does not hold the map.
function weightAt(circuit, head, query, key) {
  if (!circuit.slots.has(head)) return null;
  if (key > query) return 0;
  return circuit.weights[circuit.slots.get(head) * circuit.triangle + (query * (query + 1)) / 2 + key];
}

// Colours

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

// Elements: text always enters as text.

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function shape(tag, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}

// One stop for the tab key, arrows inside: `across` is how many items a row has (Infinity for one row).
function rove(container, selector, across = () => Infinity) {
  container.addEventListener("keydown", (event) => {
    const items = [...container.querySelectorAll(selector)];
    const at = items.indexOf(document.activeElement);
    const row = across();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: Number.isFinite(row) ? row : 1, ArrowUp: Number.isFinite(row) ? -row : -1 };
    let next = null;
    if (at >= 0 && event.key in steps) next = at + steps[event.key];
    else if (at >= 0 && event.key === "Home") next = 0;
    else if (at >= 0 && event.key === "End") next = items.length - 1;
    if (next === null) return;
    event.preventDefault();
    if (!items[next]) return;
    settle(items, items[next]);
    items[next].focus();
  });
  container.addEventListener("focusin", (event) => {
    const items = [...container.querySelectorAll(selector)];
    if (items.includes(event.target)) settle(items, event.target);
  });
}

function settle(items, chosen) {
  for (const item of items) item.tabIndex = item === chosen ? 0 : -1;
}
