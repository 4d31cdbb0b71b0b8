// What a head reads, as a tree: its three sides, and on the left of each the components that wrote it. A line
// is as thick as its effect; orange works against the answer.

import { headNamed, nameOf, sidesOf } from "./circuit.js";
import { addRovingFocus, element, replaceKeepingFocus, setLabel, svg } from "./dom.js";
import { itemShape, makeClickable, togglePin } from "./items.js";
import { number, SMALLEST_SCALE, writerText } from "./text.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const MOST_WRITERS = 6; // of a side
const LEAST_EFFECT = 0.0005; // of a writer that is drawn
const MEANINGS = { query: "what it asks for", key: "what it finds", value: "what it moves" };
// Places, in pixels of a picture as wide as `WIDTH`.
const WIDTH = 372;
const WRITER = { left: 2, right: 142 };
const SIDE = { left: 186, right: 292 };
const HEAD = { left: 322, right: 370 };
const ROW = 24;
const PILL = 20;
const SIDE_HEIGHT = 40;
const BETWEEN = 10; // two sides

export function buildTree() {
  const container = element("div", { class: "sides" });
  addRovingFocus(container, ".item");
  return container;
}

export function renderTree(container, circuit, mapping, head) {
  const known = sidesOf(circuit, mapping, head);
  if (!known) {
    container.replaceChildren();
    return;
  }
  const sides = known.sides.map((side) => ({ ...side, listed: listedWriters(side) }));
  const effectsOf = ({ effect, listed }) => [effect, ...listed.map(({ writer: [, , part] }) => part)];
  const effects = sides.flatMap(effectsOf);
  const largest = Math.max(SMALLEST_SCALE, ...effects.map(Math.abs));
  const hasWriters = sides.some(({ writers }) => writers);
  const meaning =
    "Numbers are shares of the gap: each side, and each writer into it, alone from the counterfactual run. " +
    `The attention weight alone does ${number(known.pattern)}.`;
  replaceKeepingFocus(container, ".item", "data-item", () => {
    container.replaceChildren(
      element("h4", { text: hasWriters ? "Who wrote what it reads" : "What it reads: its three sides" }),
      drawTree(circuit, head, sides, largest, hasWriters),
      element("p", { class: "meaning", text: meaning }),
    );
  });
}

// The strongest writers of a side, each with its number in the list of all.
function listedWriters({ writers }) {
  const numbered = (writers || []).map((writer, index) => ({ writer, index }));
  const isDrawn = ({ writer: [, , effect] }) => Math.abs(effect) >= LEAST_EFFECT;
  return numbered.filter(isDrawn).slice(0, MOST_WRITERS);
}

function drawTree(circuit, head, sides, largest, hasWriters) {
  const links = [];
  const nodes = [];
  const link = (from, to, effect) => {
    const middle = (from.x + to.x) / 2;
    const name = effect < 0 ? "link against" : "link";
    const width = 0.8 + (7 * Math.abs(effect)) / largest;
    const d = `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
    links.push(svg("path", { class: name, d, "stroke-width": width }));
  };
  const heights = sides.map(({ listed }) => Math.max(SIDE_HEIGHT, ROW * listed.length));
  const height = heights.reduce((sum, each) => sum + each + BETWEEN, 0);
  const root = { x: HEAD.left, y: height / 2 };
  let top = BETWEEN / 2;
  sides.forEach((side, index) => {
    const y = top + heights[index] / 2;
    const first = y - (ROW * (side.listed.length - 1)) / 2;
    side.listed.forEach(({ writer, index: place }, row) => {
      const at = first + ROW * row;
      nodes.push(drawWriter(circuit, head, side.side, writer, place, at));
      link({ x: WRITER.right, y: at }, { x: SIDE.left, y }, writer[2]);
    });
    nodes.push(drawSide(side, y, hasWriters));
    link({ x: SIDE.right, y }, root, side.effect);
    top += heights[index] + BETWEEN;
  });
  const size = { y: root.y - PILL / 2, width: HEAD.right - HEAD.left, height: PILL, rx: PILL / 2 };
  const name = svg("text", { x: (HEAD.left + HEAD.right) / 2, y: root.y + 4 }, nameOf(circuit, head));
  nodes.push(svg("g", { class: "root" }, svg("rect", { x: HEAD.left, ...size }), name));
  const left = hasWriters ? 0 : SIDE.left - 2;
  const viewBox = `${left} 0 ${WIDTH - left} ${height}`;
  const picture = svg("svg", { class: "tree", viewBox, role: "group" });
  picture.setAttribute("aria-label", `What ${nameOf(circuit, head)} reads`);
  picture.style.maxWidth = `${1.35 * (WIDTH - left)}px`;
  picture.append(...links, ...nodes);
  return picture;
}

function drawSide({ side, effect, writers, listed }, y, hasWriters) {
  const isEmpty = hasWriters && writers && !listed.length;
  const meaning = isEmpty ? "no writer moves it" : MEANINGS[side];
  const size = { y: y - SIDE_HEIGHT / 2, width: SIDE.right - SIDE.left, height: SIDE_HEIGHT - 4, rx: 9 };
  return svg(
    "g",
    { class: "side" },
    svg("rect", { x: SIDE.left, ...size }),
    svg("text", { class: "name", x: SIDE.left + 8, y: y - 5 }, side),
    svg("text", { class: "num", x: SIDE.right - 8, y: y - 5 }, number(effect, 3)),
    svg("text", { class: "small", x: SIDE.left + 8, y: y + 10 }, meaning),
  );
}

// A writer that is a head is that head; any other is an item of its own.
function drawWriter(circuit, head, side, writer, place, y) {
  const [name, position, effect] = writer;
  const isHead = /^L\d+H\d+$/.test(name);
  const item = isHead ? `head:${headNamed(circuit, name)}` : `writer:${head}-${side}-${place}`;
  const size = { y: y - PILL / 2, width: WRITER.right - WRITER.left, height: PILL, rx: PILL / 2 };
  const where = position === null ? name : `${name}@${position}`;
  const shapes = [
    svg("rect", { x: WRITER.left, ...size }),
    svg("text", { class: "name", x: WRITER.left + 10, y: y + 4 }, where),
    svg("text", { class: "num", x: WRITER.right - 10, y: y + 4 }, number(effect, 3)),
  ];
  const words = writerText(side, writer);
  const made = setLabel(itemShape(circuit, item, "writer", ...shapes), words);
  made.addEventListener("mouseenter", () => showTooltip(made, words)); // the head itself stays in sight
  made.addEventListener("mouseleave", hideTooltip);
  return makeClickable(made, () => togglePin(circuit, item));
}
