// One item, large: a head with its map, its effect beside that of random heads, and its three sides; or the
// numbers of a box, an arrow, a token, a writer or the output.

import { carriersOf, nameOf, weightAt } from "./circuit.js";
import { totalFacts } from "./controls.js";
import { element, fillFacts, svg } from "./dom.js";
import { buildMap, paintMap } from "./heads.js";
import { arrowOf, numberOf, inspectedItem, isPinned, itemText, kindOf, spanOf, togglePin } from "./items.js";
import { chosen, live, pairOf, state } from "./state.js";
import { number, numberSoFar, percent, tokenAt } from "./text.js";
import { buildTree, renderTree } from "./tree.js";

const MOST_LABELLED = 48; // tokens on the axes of a map; of more, the chosen two
const MOST_LARGE = 24; // tokens whose labels have the usual size

export function buildInspector(column) {
  const { circuit } = column;
  const labels = (axis) => element("div", { class: `labels ${axis}`, "aria-hidden": "true" });
  const togglePinned = () => togglePin(circuit, inspectedItem(circuit));
  const inspector = {
    title: element("h3"),
    role: element("span", { class: "role" }),
    pin: element("button", { type: "button", class: "tool pin", onclick: togglePinned }),
    text: element("p", { class: "text" }),
    map: buildMap({ role: "img" }),
    keys: labels("keys"),
    queries: labels("queries"),
    reading: element("p", { class: "reading" }),
    missing: element("p", { class: "missing", text: "This head's map was left out to keep the page small." }),
    facts: element("dl", { class: "facts" }),
    chance: element("div", { class: "chance" }),
    actions: element("span", { class: "actions" }),
    sides: buildTree(),
  };
  const { title, role, actions, pin, text, map, keys, queries, reading, missing } = inspector;
  const { facts, chance, sides } = inspector;
  const corner = element("span", { class: "corner", "aria-hidden": "true", text: "Q ↑  K →" });
  inspector.large = element(
    "div",
    { class: "large" },
    queries,
    element("div", { class: "frame" }, map),
    corner,
    keys,
  );
  inspector.root = element(
    "div",
    { class: "card inspector", role: "region", "aria-label": "What is chosen" },
    element("div", { class: "titles" }, title, role, actions, pin),
    text,
    element("div", { class: "map-and-tree" }, element("div", {}, inspector.large, missing, reading), sides),
    ...[facts, chance],
  );
  map.addEventListener("mousemove", (event) => {
    const box = map.getBoundingClientRect();
    const length = circuit.words.length;
    const cell = (share) => Math.min(length - 1, Math.max(0, Math.floor(share * length)));
    const key = cell((event.clientX - box.left) / box.width);
    const query = length - 1 - cell((event.clientY - box.top) / box.height);
    readWeight(column, [key, query]);
  });
  map.addEventListener("mouseleave", () => readWeight(column, pairOf(circuit)));
  return inspector;
}

export function renderInspector(column) {
  const { circuit, inspector } = column;
  const item = inspectedItem(circuit);
  const isHead = kindOf(item) === "head";
  const pinned = isPinned(circuit, item);
  inspector.root.classList.toggle("is-pinned", pinned);
  inspector.pin.textContent = pinned ? "Free (Esc)" : "Pin";
  inspector.pin.setAttribute("aria-pressed", String(pinned));
  for (const part of ["large", "missing", "reading", "chance", "sides", "actions"]) {
    inspector[part].hidden = !isHead;
  }
  inspector.text.hidden = isHead;
  if (isHead) renderHead(column, numberOf(item));
  else renderOther(column, item);
}

// The title is what the text of the item says up to its first comma or colon.
function renderOther({ circuit, inspector }, item) {
  const [title, ...rest] = itemText(circuit, item).split(/(?<=^[^,:]*)[,:] /);
  inspector.title.textContent = title;
  inspector.role.textContent = kindOf(item);
  inspector.role.classList.remove("carrier");
  inspector.text.textContent = rest.join(", ");
  const facts = { arrow: arrowFacts, box: boxFacts }[kindOf(item)];
  fillFacts(inspector.facts, facts ? facts(circuit, item) : []);
}

function arrowFacts(circuit, item) {
  const mapping = arrowOf(circuit, item);
  const steps = carriersOf(mapping, state.percentage).map(({ head, joint }) => {
    const ofTotal = `${percent(joint / mapping.total)} of the total`;
    return [nameOf(circuit, head), number(joint), `share of the gap: joint effect up to here, ${ofTotal}`];
  });
  return [...totalFacts(mapping), ...steps];
}

function boxFacts(circuit, item) {
  const span = spanOf(circuit, item);
  const layers = span.residual.map((effect, layer) => {
    if (layer === circuit.layers) return ["Into output", number(effect), "held at the end"];
    const written = `held; what layer ${layer} writes there: ${number(span.writes[layer])}`;
    return [`Into layer ${layer}`, number(effect), written];
  });
  return [["Largest", number(span.effect), `put in its place: ${span.counterfactual}`], ...layers];
}

function renderHead(column, head) {
  const { circuit, inspector } = column;
  const { pair, mapping, carriers } = chosen(circuit);
  const step = carriers.findIndex((carrier) => carrier.head === head);
  const isCarrier = step >= 0;
  const role = isCarrier ? `carrier ${step + 1} of ${carriers.length}` : "not a carrier at this share";
  inspector.title.textContent = nameOf(circuit, head);
  inspector.role.textContent = role;
  inspector.role.classList.toggle("carrier", isCarrier);
  const hasMap = circuit.mapStarts.has(head);
  inspector.large.hidden = !hasMap;
  inspector.reading.hidden = !hasMap;
  inspector.missing.hidden = hasMap;
  if (hasMap) renderLargeMap(column, head);
  const measured = mapping?.heads.get(head);
  const effect = measured?.effect;
  const loading = measured?.loading === null ? "not measured" : numberSoFar(circuit, measured?.loading);
  const meaning = "share of the gap: its message replaced by the counterfactual's";
  fillFacts(inspector.facts, [
    ["Effect", numberSoFar(circuit, effect), meaning],
    ["Restore", numberSoFar(circuit, measured?.restore), "share of the gap: its clean message put back"],
    ["Loading", loading, "share of the gap: linear, patterns frozen"],
    ["Weight", weightText(circuit, head, pair, measured), "attention on this edge, clean → counterfactual"],
  ]);
  renderChance(inspector.chance, mapping, carriers, head);
  renderTree(inspector.sides, circuit, mapping, head);
  inspector.actions.replaceChildren(...(live.headActions ? live.headActions(circuit, head) : []));
}

function weightText(circuit, head, [key, query], measured) {
  if (measured) return `${number(measured.weight)} → ${number(measured.counterfactualWeight)}`;
  const weight = weightAt(circuit, head, query, key);
  return number(weight === null ? null : weight / 255);
}

function renderLargeMap({ circuit, inspector }, head) {
  const { large, map, keys, queries } = inspector;
  const [key, query] = pairOf(circuit);
  const length = circuit.words.length;
  paintMap(map, circuit, head);
  const canvas = map.firstChild;
  canvas.setAttribute("aria-label", `Attention map of ${nameOf(circuit, head)}: query up, key to the right`);
  const all = [...circuit.words.keys()];
  const labelled = all.filter(
    (position) => length <= MOST_LABELLED || position === key || position === query,
  );
  large.classList.toggle("dense", length > MOST_LARGE && length <= MOST_LABELLED);
  const label = (position, chosenPosition, edge) => {
    const name = position === chosenPosition ? "chosen" : "";
    const text = circuit.spelled[position];
    const made = element("span", { class: name, dir: "auto", text, title: tokenAt(circuit, position) });
    made.style[edge] = `${(100 * (position + 0.5)) / length}%`;
    return made;
  };
  keys.replaceChildren(...labelled.map((position) => label(position, key, "left")));
  queries.replaceChildren(...labelled.map((position) => label(position, query, "bottom")));
  readWeight({ circuit, inspector }, [key, query]);
}

// The weight of one cell of the large map, in words.
function readWeight({ circuit, inspector }, [key, query]) {
  const weight = weightAt(circuit, numberOf(inspectedItem(circuit)), query, key);
  const value = number(weight === null ? null : weight / 255);
  const ends = `${tokenAt(circuit, key)} → ${tokenAt(circuit, query)}`;
  inspector.reading.textContent = `${ends}: weight ${value}`;
}

// The effect of the head on one line with the effects of single heads that are no carriers: one beside one.
function renderChance(container, mapping, carriers, head) {
  const effect = mapping?.heads.get(head)?.effect;
  const single = effect === undefined ? [] : effectsOfOthers(mapping, carriers, head);
  container.hidden = !single.length;
  if (container.hidden) return;
  const mean = single.reduce((sum, value) => sum + value, 0) / single.length;
  const p95 = single[Math.floor(0.95 * (single.length - 1))];
  const low = Math.min(0, effect, mean);
  const high = Math.max(effect, p95, mapping.total, 0.01);
  const x = (value) => 8 + (304 * (value - low)) / (high - low);
  const left = x(Math.min(mean, p95)) - 1;
  const width = Math.max(3, x(Math.max(mean, p95)) + 1 - left);
  const spread = `mean ${number(mean)}, 95th percentile ${number(p95)}`;
  const pool = `each of the ${single.length} other heads that are no carriers, alone`;
  const words = `effect ${number(effect)}; ${pool}: ${spread}`;
  const strip = svg(
    "svg",
    { class: "strip", viewBox: "0 0 320 34", role: "img", "aria-label": `Beside chance: ${words}` },
    svg("line", { class: "rule", x1: x(low), x2: x(high), y1: 14, y2: 14 }),
    svg("rect", { class: "random", x: left, y: 8, width, height: 12, rx: 3 }),
    svg("line", { class: "total", x1: x(mapping.total), x2: x(mapping.total), y1: 6, y2: 22 }),
    svg("circle", { class: "own", cx: x(effect), cy: 14, r: 5 }),
  );
  const place = effect > p95 ? "above what a random head does" : "within what a random head does";
  container.replaceChildren(
    element("h4", { text: "Beside a random head" }),
    strip,
    element("p", { class: "meaning", text: `${place}: ${words}` }),
  );
}

// The effects of the heads that are no carriers, each alone, the smallest first.
function effectsOfOthers(mapping, carriers, head) {
  const carrying = new Set(carriers.map((carrier) => carrier.head));
  const others = [...mapping.heads].filter(([other]) => other !== head && !carrying.has(other));
  return others.map(([, measured]) => measured.effect).sort((a, b) => a - b);
}
