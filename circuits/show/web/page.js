// The page: a column for each circuit of the chosen prompt, the toolbar, the address, and redrawing.

import { fromFragment, toFragment } from "./address.js";
import { nameOf, search } from "./circuit.js";
import { darkScheme } from "./colours.js";
import { renderControls, renderVerdict } from "./controls.js";
import { markPinned, renderDiagram } from "./diagram.js";
import { addRovingFocus, byId, copyText, element, replaceKeepingFocus, svg } from "./dom.js";
import { buildEffects, renderCarriers, renderEffects, renderPath } from "./heads.js";
import { buildInspector, renderInspector } from "./inspector.js";
import { choosePair, exists, numberOf, isPinned, itemText, kindOf, togglePin, unpin } from "./items.js";
import {
  chosen,
  circuitWith,
  circuitsOf,
  groupOf,
  isShown,
  live,
  onChange,
  page,
  pairOf,
  shownCircuits,
  state,
  update,
} from "./state.js";
import { number, percent, statusText, tokenAt } from "./text.js";
import { hideTooltip, placeTooltip } from "./tooltip.js";
import { addZoom, buildTools, placePicture } from "./zoom.js";

const LEGEND =
  "Outline: layers that hold a token. Shaded: layers that build it. Arrow: heads that read the key and " +
  "write to the query, as wide as their part of the joint effect (share of the gap). Red: the chosen " +
  "mapping. Tick: a layer that writes where nothing is held. Bar under a token: the total of what the " +
  "query reads there.";
const MOST_CHIPS = 12; // mappings listed below a diagram
const MOST_FOUND = 8;
const LONG_TITLE = 80; // characters; a longer one is set smaller
const DRAWN_WHOLE = ["circuits", "group", "beside", "percentage", "picking", "pairs", "printing"];

let columns = [];

export function start() {
  onChange(redraw);
  addListeners();
  openAddress(location.hash);
}

// Columns

function buildColumn(circuit, index) {
  const id = (name) => `${name}-${index}`;
  const group = (name, attributes) => element("div", { class: name, role: "group", ...attributes });
  const card = (name, ...children) => element("div", { class: `card ${name}` }, ...children);
  const heading = (text, attributes = {}) => element("h3", { ...attributes, text });
  const column = {
    circuit,
    verdict: element("div", { class: "verdict", role: "note" }),
    picture: svg("svg", { class: "picture", role: "group", tabindex: -1 }), // its items take the focus
    actions: group("actions", { "aria-label": "What can be measured next" }),
    status: element("p", { class: "status", role: "status" }),
    chips: group("chips", { "aria-label": "Mappings in this file" }),
    carriers: group("tiles", { "aria-labelledby": id("carriers") }),
    curve: svg("svg", { class: "curve", role: "img" }),
    effects: group("effects", { "aria-labelledby": id("effects") }),
    scale: element("p", { class: "scale" }),
    controls: element("dl", { class: "facts" }),
  };
  column.viewport = element("div", { class: "viewport" }, column.picture);
  column.inspector = buildInspector(column);
  const tools = buildTools(column);
  const axes = element("span", { class: "axes", "aria-hidden": "true", text: "Q ↑  K →" });
  const carriersTitle = heading("Carriers, and the share of the total up to each", { id: id("carriers") });
  const effectsTitle = heading("Effect of every head, as a share of the gap", { id: id("effects") });
  column.root = element(
    "section",
    { class: "column", "aria-labelledby": id("name"), "data-circuit": circuit.id },
    element(
      "div",
      { class: "heading" },
      element("h2", { id: id("name"), dir: "auto", text: circuit.name }),
      element("p", { class: "prompt", dir: "auto", text: circuit.prompt }), // where several prompts are shown
      element("p", { text: circuit.model_line }),
      element("p", { class: "lede", text: circuit.question_line }),
    ),
    column.verdict,
    element(
      "div",
      { class: "main" },
      card(
        "diagram",
        tools,
        element("p", { class: "legend", text: LEGEND }),
        ...[column.viewport, column.actions, column.status, column.chips],
      ),
      card("controls", heading("Controls of this mapping"), column.controls),
    ),
    element(
      "div",
      { class: "grids" },
      card(
        "maps",
        element("div", { class: "titles" }, carriersTitle, axes),
        column.carriers,
        heading("Greedy path, as a share of the total"),
        column.curve,
      ),
      card("", effectsTitle, column.effects, column.scale),
    ),
    element("div", { class: "beside" }, column.inspector.root),
  );
  addZoom(column);
  buildEffects(column);
  addRovingFocus(column.picture, ".item");
  addRovingFocus(column.chips, "button");
  addRovingFocus(column.carriers, "button", () => tilesPerRow(column.carriers));
  addRovingFocus(column.effects, "button", () => circuit.heads);
  return column;
}

function tilesPerRow({ children }) {
  return [...children].filter((tile) => tile.offsetTop === children[0].offsetTop).length;
}

function renderColumn(column) {
  const { circuit, status } = column;
  const { pair, mapping, carriers } = chosen(circuit);
  status.textContent = statusText(circuit, mapping, carriers, pair);
  status.classList.toggle("nothing", !mapping);
  renderVerdict(column);
  renderDiagram(column);
  renderChips(column);
  renderCarriers(column);
  renderPath(column);
  renderEffects(column);
  renderInspector(column);
  renderActions(column);
  renderControls(column);
  markPinned(column);
}

// What can be done next, where the diagram is: on a live page with the pinned head; else, where the chosen
// mapping is not in the file, the program that measures it.
function renderActions({ circuit, actions }) {
  const { pinned } = state;
  const [key, query] = pairOf(circuit);
  const button = (text, onclick) => element("button", { type: "button", class: "tool", text, onclick });
  const shown = [];
  if (live.headActions && pinned?.id === circuit.id && kindOf(pinned.item) === "head") {
    const name = element("span", { text: itemText(circuit, pinned.item) });
    const buttons = live.headActions(circuit, numberOf(pinned.item));
    shown.push(name, ...buttons, button("Free (Esc)", unpin));
  } else if (!live.askMapping && circuit.program && !chosen(circuit).mapping && key <= query) {
    const [before, between, after] = circuit.program;
    const program = `${before}${key}${between}${query}${after}`;
    const copy = ({ target }) => copyText(program, target);
    const text = element("span", { text: "Its heads can be measured:" });
    shown.push(text, button("Copy the Python for it", copy));
  }
  actions.replaceChildren(...shown);
  actions.hidden = !shown.length;
}

function renderChips({ circuit, chips }) {
  const current = pairOf(circuit).join("-");
  const chip = ({ key, query, total }) => {
    const isChosen = `${key}-${query}` === current;
    const attributes = {
      type: "button",
      class: isChosen ? "chip chosen" : "chip",
      tabindex: -1,
      "aria-pressed": String(isChosen),
      "data-pair": `${key}-${query}`,
      onclick: () => choosePair(circuit, [key, query]),
    };
    const words = `${circuit.spelled[key]} → ${circuit.spelled[query]}`;
    return element(
      "button",
      attributes,
      element("span", { dir: "auto", text: words }),
      element("span", { class: "where", text: `${key}→${query}` }),
      element("b", { text: number(total) }),
    );
  };
  replaceKeepingFocus(chips, ".chip", "data-pair", () => {
    chips.replaceChildren(...circuit.mappings.slice(0, MOST_CHIPS).map(chip));
  });
}

// Redrawing: the only place that decides what a change of the state draws again

function redraw(changed) {
  const shown = shownCircuits();
  const isSame =
    shown.length === columns.length && shown.every((circuit, at) => circuit === columns[at].circuit);
  if (!isSame) buildColumns(shown);
  if (!isSame || changed.some((name) => DRAWN_WHOLE.includes(name))) {
    renderToolbar();
    columns.forEach(renderColumn);
  } else if (changed.includes("pinned") || changed.includes("jobs")) {
    columns.forEach(renderInspector);
    columns.forEach(renderActions);
    columns.forEach(markPinned);
  } else if (changed.includes("hovered") && !state.pinned) {
    columns.forEach(renderInspector);
  } else if (changed.includes("opened")) {
    columns.forEach(renderDiagram);
  } else if (changed.includes("views")) {
    columns.forEach(placePicture);
  }
  if (["circuits", "group", "beside", "waiting"].some((name) => changed.includes(name))) renderPending();
  live.render?.(changed);
  scheduleAddress();
}

function buildColumns(circuits) {
  columns = circuits.map(buildColumn);
  byId("columns").replaceChildren(...columns.map((column) => column.root));
  const prompts = new Set(circuits.map((circuit) => circuit.prompt));
  byId("columns").classList.toggle("prompts", prompts.size > 1);
  if (circuits.length) {
    const title = [...prompts].join(" · ");
    byId("title").textContent = title;
    byId("title").classList.toggle("long", title.length > LONG_TITLE);
    document.title = circuits[0].prompt;
  }
  renderFound();
}

// Beside the columns stands what was asked and has no circuit yet.
function renderPending() {
  const container = byId("columns");
  for (const card of container.querySelectorAll(".pending")) card.remove();
  const asked = state.waiting.filter(({ question }) => isShown(question.group));
  const card = ({ question: { model, key, query, without }, tokens }) => {
    const ends = `${tokenAt(tokens, key)} → ${tokenAt(tokens, query)}`;
    const leftOut = without.length ? ` without ${without.join(" and ")}` : "";
    const text = `measuring… ${ends} on ${model}${leftOut}`;
    return element("p", { class: "card pending", text });
  };
  container.append(...asked.map(card));
  container.classList.toggle("single", container.children.length === 1);
}

// Toolbar

function renderToolbar() {
  document.querySelector(".toolbar").hidden = !state.circuits.length;
  byId("share").value = state.percentage;
  byId("share-value").textContent = percent(state.percentage / 100);
  for (const radio of pickers()) radio.checked = radio.value === state.picking;
  const groups = [...new Set(state.circuits.map(groupOf))];
  const options = (chosenGroup) =>
    groups.map((group, index) => {
      const text = `${index + 1}. ${circuitsOf(group)[0].choice}`;
      return element("option", { value: group, text, selected: group === chosenGroup });
    });
  byId("prompts").replaceChildren(...options(state.group));
  byId("beside").replaceChildren(element("option", { value: "", text: "nothing" }), ...options(state.beside));
  byId("picker").hidden = groups.length < 2;
}

const pickers = () => document.querySelectorAll("input[data-picking]");

function chooseGroup(group) {
  update({ group, beside: state.beside === group ? "" : state.beside, pinned: null });
}

function chooseBeside(group) {
  update({ beside: state.group === group ? "" : group, pinned: null });
}

function stepGroup(step) {
  const groups = [...byId("prompts").options].map((option) => option.value);
  chooseGroup(groups[(groups.indexOf(state.group) + step + groups.length) % groups.length]);
}

function renderFound() {
  const typed = byId("search").value;
  const [column] = columns;
  const items = column ? found(column.circuit, typed).slice(0, MOST_FOUND) : [];
  byId("found").replaceChildren(...items.map((item) => foundButton(column, item)));
  if (typed.trim() && !items.length) {
    byId("found").append(element("span", { class: "nothing", text: "no head or token of this name" }));
  }
}

// What matches exactly comes first, then carriers, then the rest.
function found(circuit, typed) {
  const wanted = typed.trim().toLowerCase();
  const carrying = new Set(chosen(circuit).carriers.map(({ head }) => `head:${head}`));
  const isHead = (item) => kindOf(item) === "head";
  const text = (item) => (isHead(item) ? nameOf(circuit, numberOf(item)) : circuit.spelled[numberOf(item)]);
  const rank = (item) => (text(item).toLowerCase() === wanted ? 0 : carrying.has(item) ? 1 : 2);
  return search(circuit, typed).sort((one, other) => rank(one) - rank(other));
}

function foundButton({ circuit, picture }, item) {
  const text = kindOf(item) === "head" ? nameOf(circuit, numberOf(item)) : tokenAt(circuit, numberOf(item));
  const show = () => {
    if (!isPinned(circuit, item)) togglePin(circuit, item);
    picture.querySelector(`[data-item="${item}"]`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  const title = itemText(circuit, item);
  return element("button", { type: "button", class: "result", title, text, onclick: show });
}

// The address holds all that is chosen

let isScheduled = false;

function scheduleAddress() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    const fragment = `#${toFragment(state)}`;
    if (location.hash !== fragment) history.replaceState(null, "", fragment);
  });
}

export function openAddress(address) {
  const read = fromFragment(address);
  const groups = state.circuits.map(groupOf);
  const group = groups.includes(read.group) ? read.group : groups[0] || "";
  const beside = groups.includes(read.beside) && read.beside !== group ? read.beside : "";
  const [first] = circuitsOf(group);
  const isInside = first && read.pair?.every((position) => position < first.words.length);
  const pairs = isInside ? { ...state.pairs, [group]: read.pair } : state.pairs;
  const views = Object.entries(read.views).filter(([id]) => circuitWith(id));
  const percentage = read.percentage ?? Math.round(page.share * 100);
  const picking = read.picking || "key";
  update({ group, beside, percentage, pairs, picking, pinned: null, views: Object.fromEntries(views) });
  const owner = read.pinned && circuitWith(read.pinned.id);
  if (owner && exists(owner, read.pinned.item)) update({ pinned: read.pinned });
}

function addListeners() {
  byId("share").addEventListener("input", (event) => update({ percentage: Number(event.target.value) }));
  for (const radio of pickers()) {
    radio.addEventListener("change", () => update({ picking: radio.value }));
  }
  byId("prompts").addEventListener("change", (event) => chooseGroup(event.target.value));
  byId("beside").addEventListener("change", (event) => chooseBeside(event.target.value));
  byId("before").addEventListener("click", () => stepGroup(-1));
  byId("after").addEventListener("click", () => stepGroup(1));
  byId("search").addEventListener("input", renderFound);
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") byId("found").querySelector("button")?.click();
  });
  byId("link").addEventListener("click", () => copyText(location.href, byId("link")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideTooltip();
    unpin();
  });
  window.addEventListener("hashchange", () => {
    if (location.hash.slice(1) !== toFragment(state)) openAddress(location.hash);
  });
  window.addEventListener("scroll", placeTooltip, { passive: true });
  window.addEventListener("beforeprint", () => update({ printing: true }));
  window.addEventListener("afterprint", () => update({ printing: false }));
  window.addEventListener("resize", () => redraw(DRAWN_WHOLE));
  darkScheme.addEventListener("change", () => redraw(DRAWN_WHOLE));
}
