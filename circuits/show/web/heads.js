// The heads of a circuit: the maps of the carriers, the greedy path, and the effect of every head.

import { modulationOf, nameOf, weightAt } from "./circuit.js";
import { attentionColour, attentionPixels, effectColour } from "./colours.js";
import { element, replaceKeepingFocus, setLabel, svg } from "./dom.js";
import { makeSelectable } from "./items.js";
import { chosen, pairOf, state } from "./state.js";
import { headText, MEASURING, number, percent, SMALLEST_SCALE } from "./text.js";

// An attention map with the queries upwards, and a red frame around the cell of the chosen mapping.
// The frame is filled with the cell's colour and never narrower than it can be seen.
export function buildMap(attributes = {}) {
  const canvas = element("canvas", attributes);
  return element("span", { class: "map" }, canvas, element("i", { class: "marker", "aria-hidden": "true" }));
}

export function paintMap(map, circuit, head) {
  const [canvas, marker] = map.children;
  const length = circuit.words.length;
  canvas.width = length;
  canvas.height = length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(length, length);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = attentionPixels();
  for (let query = 0; query < length; query += 1) {
    const row = (length - 1 - query) * length; // query 0 is the lowest row
    for (let key = 0; key < length; key += 1) {
      pixels[row + key] = colours[weightAt(circuit, head, query, key) || 0];
    }
  }
  context.putImageData(image, 0, 0);
  const [key, query] = pairOf(circuit);
  const weight = weightAt(circuit, head, query, key) || 0;
  marker.hidden = key > query;
  marker.style.left = `${(100 * (key + 0.5)) / length}%`;
  marker.style.bottom = `${(100 * (query + 0.5)) / length}%`;
  marker.style.width = `${100 / length}%`;
  marker.style.backgroundColor = attentionColour(weight / 255);
}

export function renderCarriers({ circuit, carriers: container }) {
  const { mapping, carriers } = chosen(circuit);
  const tile = ({ head, joint }) => {
    const item = `head:${head}`;
    const map = buildMap({ "aria-hidden": "true" });
    paintMap(map, circuit, head);
    const made = element(
      "button",
      { type: "button", class: "tile", tabindex: -1, "data-item": item },
      map,
      element("span", { class: "name", text: nameOf(circuit, head) }),
      element("span", { class: "joint", text: percent(joint / mapping.total) }),
    );
    return makeSelectable(setLabel(made, headText(circuit, mapping, head, carriers)), circuit, item);
  };
  container.dataset.empty = circuit.unfinished ? MEASURING : "No head carries this mapping.";
  replaceKeepingFocus(container, ".tile", "data-item", () => {
    container.replaceChildren(...carriers.map(tile));
  });
}

const CURVE = { width: 320, height: 96, left: 38, right: 312, top: 8, bottom: 78 };

// The joint effect of the first heads of the greedy path, as shares of the total.
export function renderPath({ circuit, curve }) {
  const { mapping, carriers } = chosen(circuit);
  const count = mapping ? mapping.path.length : 0;
  curve.replaceChildren();
  curve.classList.toggle("empty", count === 0);
  curve.setAttribute("aria-label", "No head is on the path");
  if (!count) return;
  const { left, right, top, bottom, width, height } = CURVE;
  const shares = [0, ...mapping.path.map((step) => step.joint / mapping.total)];
  const highest = Math.max(1, ...shares);
  const x = (heads) => left + ((right - left) * heads) / count;
  const y = (share) => bottom - (bottom - top) * Math.max(0, share / highest);
  const line = (name, share) => svg("line", { class: name, x1: left, x2: right, y1: y(share), y2: y(share) });
  const text = (words, place) => svg("text", { class: "tick", ...place }, words);
  for (const share of [0, 0.5, 1]) {
    const place = { x: left - 6, y: y(share) + 3.5, "text-anchor": "end" };
    curve.append(line("rule", share), text(percent(share), place));
  }
  const points = shares.map((share, heads) => `${x(heads)},${y(share)}`).join(" ");
  curve.append(line("wanted", state.percentage / 100), svg("polyline", { class: "line", points }));
  if (carriers.length) {
    const cy = y(shares[carriers.length]);
    curve.append(svg("circle", { class: "dot", cx: x(carriers.length), cy, r: 4 }));
  }
  curve.append(text("0 heads", { x: left, y: height - 4 }));
  curve.append(text(`${count} heads on the path`, { x: right, y: height - 4, "text-anchor": "end" }));
  curve.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const reached = percent(modulationOf(mapping, carriers));
  curve.setAttribute("aria-label", `${carriers.length} heads reach ${reached} of the total`);
}

// A row of cells for each layer, layer 0 at the bottom as in every figure; below, the numbers of the heads.
export function buildEffects(column) {
  const { circuit, effects } = column;
  const cellHeight = Math.max(11, Math.min(22, Math.floor(330 / circuit.layers)));
  effects.style.gridTemplateColumns = `auto repeat(${circuit.heads}, minmax(0, 1fr))`;
  effects.style.maxWidth = `${circuit.heads * 28 + 40}px`;
  effects.style.setProperty("--cell", `${cellHeight}px`);
  const axis = (text) => element("span", { class: "axis", text, "aria-hidden": "true" });
  column.cells = []; // by the number of the head
  for (let layer = circuit.layers - 1; layer >= 0; layer -= 1) {
    effects.append(axis(layer));
    for (let index = 0; index < circuit.heads; index += 1) {
      const head = layer * circuit.heads + index;
      const item = `head:${head}`;
      const attributes = { type: "button", class: "cell", tabindex: head ? -1 : 0, "data-item": item };
      column.cells[head] = makeSelectable(element("button", attributes), circuit, item);
      effects.append(column.cells[head]);
    }
  }
  effects.append(axis("L \\ H"));
  for (let index = 0; index < circuit.heads; index += 1) effects.append(axis(index));
}

export function renderEffects({ circuit, cells, scale }) {
  const { mapping, carriers } = chosen(circuit);
  const measured = mapping ? mapping.heads : new Map();
  const sizes = [...measured.values()].map(({ effect }) => Math.abs(effect));
  const largest = Math.max(SMALLEST_SCALE, ...sizes);
  const carrying = new Set(carriers.map(({ head }) => head));
  cells.forEach((cell, head) => {
    const known = measured.get(head);
    cell.style.backgroundColor = known ? effectColour(known.effect / largest) : "";
    cell.classList.toggle("carrier", carrying.has(head));
    cell.setAttribute("aria-label", headText(circuit, mapping, head, carriers));
  });
  const ramp = element("i", { class: "ramp", "aria-hidden": "true" });
  const stops = [-1, -0.5, 0, 0.5, 1].map(effectColour);
  ramp.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
  const end = (sign) => element("span", { text: `${sign}${number(largest)}` });
  scale.replaceChildren(end("−"), ramp, end("+"));
  scale.hidden = !measured.size;
}
