// The circuit on a scale of layers, as SVG. Every item can be pointed at, clicked and reached by keyboard.

import { carriersOf, mappingOf, modulationOf, nameOf, totalsOf } from "./circuit.js";
import { replaceKeepingFocus, setLabel, svg } from "./dom.js";
import { chooseToken, isPinned, itemShape, itemText, kindOf, makeSelectable, togglePin } from "./items.js";
import { layOut, rowOf } from "./layout.js";
import { chosen, columnsOf, live, state, update, withPair } from "./state.js";
import {
  arrowText,
  headText,
  MEASURING,
  outputText,
  percent,
  rolesOf,
  SMALLEST_SCALE,
  tokenAt,
} from "./text.js";
import { placePicture } from "./zoom.js";

const CHIP = 18; // the height of a head's name
const HELD = 64; // from the first layer down to the words that say which layers hold a token

export function renderDiagram(column) {
  const { circuit, picture } = column;
  const { pair, mapping } = chosen(circuit);
  const layout = layOut(circuit, { shown: columnsOf(circuit), pair, percentage: state.percentage });
  column.layout = layout;
  const inFrontLast = [...layout.arrows].sort((a, b) => a.front - b.front);
  replaceKeepingFocus(picture, ".item", "data-item", () => {
    picture.replaceChildren(
      svg("g", {}, ...drawRows(circuit, layout)),
      svg("g", {}, ...circuit.spans.flatMap((span) => drawBoxes(circuit, span, layout, pair))),
      svg("g", {}, ...drawStreams(circuit, layout)),
      svg("g", {}, ...inFrontLast.flatMap((arrow) => drawArrow(circuit, arrow))),
      svg("g", {}, ...drawCaption(circuit), drawOutput(circuit, layout)),
      svg("g", {}, ...layout.columns.map((token) => drawColumn(column, token, layout.foot))),
      svg("g", {}, ...layout.columns.map((token) => drawHeld(circuit, token, layout.foot, pair))),
      svg("g", {}, ...layout.groups.flatMap(drawGroup)),
      drawAxis(circuit, layout),
    );
  });
  const ends = `${tokenAt(circuit, pair[0])} to ${tokenAt(circuit, pair[1])}`;
  const words = mapping ? arrowText(circuit, mapping, state.percentage) : `${ends} is not in this file`;
  picture.setAttribute("aria-label", `Diagram on a scale of layers. ${words}. ${outputText(circuit)}.`);
  for (const text of picture.querySelectorAll("[data-space]")) squeeze(text);
  markPinned(column);
  placePicture(column);
}

// Places were measured in a wide font; a text of a wider one is made as narrow as its place.
function squeeze(text) {
  const space = Number(text.getAttribute("data-space"));
  if (text.getComputedTextLength() <= space) return;
  text.setAttribute("textLength", space);
  text.setAttribute("lengthAdjust", "spacingAndGlyphs");
}

export function markPinned(column) {
  for (const node of column.root.querySelectorAll("[data-item]")) {
    const item = node.getAttribute("data-item");
    const pinned = isPinned(column.circuit, item);
    node.classList.toggle("pinned", pinned);
    if (kindOf(item) !== "token" && kindOf(item) !== "gap") node.setAttribute("aria-pressed", String(pinned));
  }
}

function drawRows({ picture }, { rows, right }) {
  const left = picture.axis - 12;
  const rule = (y) => svg("line", { class: "rule", x1: left, x2: right, y1: y, y2: y });
  const shapes = [rule(picture.top)];
  for (const { first, last, top, bottom } of rows) {
    const size = { x: left, y: top, width: right - left, height: bottom - top };
    if (first < last) shapes.push(svg("rect", { class: "folded", ...size }));
    shapes.push(rule(bottom));
  }
  return shapes;
}

// The numbers of the layers; `placePicture` keeps them at the left end of what is seen.
function drawAxis({ picture }, { rows, foot }) {
  const name = (words, y) => svg("text", { class: "axis-name", x: 2, y }, words);
  const top = picture.top - 24;
  const size = { width: picture.axis - 12, height: foot + HELD + 6 - top };
  const shapes = [
    svg("rect", { class: "axis-background", x: 0, y: top, ...size }),
    name("layer", picture.top - 8),
  ];
  for (const { first, last, top: upper, bottom } of rows) {
    const layers = first < last ? `${first}–${last}` : first;
    const place = { x: picture.axis - 18, y: (upper + bottom) / 2 + 4 };
    shapes.push(svg("text", { class: "axis-layer", ...place }, layers));
  }
  if (picture.held.some(Boolean)) shapes.push(name("held in", foot + HELD));
  return svg("g", { class: "axis-group" }, ...shapes);
}

// A span is a box in the column of each of its positions, from its first layer to its last.
function drawBoxes(circuit, span, { columns, rows }, pair) {
  if (!span.layers.length) return [];
  const top = (layer) => rowOf(rows, layer)?.top ?? circuit.picture.top; // the output stands above all layers
  const bottom = (layer) => rowOf(rows, layer)?.bottom ?? circuit.picture.top;
  const item = `box:${span.name}`;
  const own = columns.filter(({ position }) => span.positions.includes(position));
  return own.map(({ position, x }) => {
    const half = circuit.picture.halves[position];
    const rect = (name, [first, last], rx) => {
      const size = { y: top(last) + 1.5, height: bottom(first) - top(last) - 3 };
      return svg("rect", { class: name, x: x - half, width: 2 * half, ...size, rx });
    };
    const [lowest, highest] = [span.layers[0], span.layers.at(-1)];
    // What writes where nothing is held is a tick.
    const tick = ([first, last]) => {
      const y = (top(last) + bottom(first)) / 2;
      return svg("rect", { class: "built tick", x: x - half, width: 2 * half, y: y - 1.5, height: 3 });
    };
    const built = span.ranges.flatMap(([first, last]) => {
      const below = [first, Math.min(last, lowest - 1)];
      const inside = [Math.max(first, lowest), Math.min(last, highest)];
      const above = [Math.max(first, highest + 1), last];
      const parts = [below, inside, above].filter(([start, end]) => start <= end);
      return parts.map((part) => (part === inside ? rect("built", part, 4) : tick(part)));
    });
    const shapes = [...built, rect("frame", span.layers, 7)];
    const made = itemShape(circuit, item, position === pair[0] ? "box key" : "box", ...shapes);
    made.setAttribute("data-positions", span.positions.join("+"));
    made.setAttribute("data-layers", span.layers.join("-"));
    return makeSelectable(made, circuit, item);
  });
}

// The residual stream of every token that is read or written, from the sentence up to its highest arrow.
function drawStreams({ picture }, { arrows, output, foot }) {
  const streams = new Map();
  for (const { start, end, y, front } of arrows) {
    for (const x of [start, end]) {
      const stream = streams.get(x) || { y: foot, front: false };
      stream.y = Math.min(stream.y, y);
      stream.front ||= front && x === start;
      streams.set(x, stream);
    }
  }
  const line = ([x, { y, front }]) =>
    svg("line", { class: front ? "stream front" : "stream", x1: x, x2: x, y1: foot, y2: y });
  const way = `M${output.stream} ${foot}V${picture.top - 8}L${output.x} ${output.y + output.height}`;
  return [...[...streams].map(line), svg("path", { class: "stream out", d: way })];
}

// An arrow and the names of its heads. A click on any of them brings the mapping to the front.
function drawArrow(circuit, arrow) {
  const { mapping, front } = arrow;
  const ends = [mapping.key, mapping.query];
  const select = (item) => togglePin(circuit, item, front ? {} : { pairs: withPair(circuit, ends) });
  const item = `arrow:${ends.join("-")}`;
  const name = `arrow${front ? " front" : ""}${arrow.effect < 0 ? " against" : ""}`;
  const made = itemShape(circuit, item, name, ...arrowShapes(arrow));
  const shapes = [makeSelectable(made, circuit, item, () => select(item))];
  for (const chip of placeChips(circuit, arrow)) {
    const chipItem = chip.head === null ? item : `head:${chip.head}`;
    const drawn = drawChip(circuit, arrow, chip, chipItem);
    shapes.push(makeSelectable(drawn, circuit, chipItem, () => select(chipItem)));
  }
  return shapes;
}

// The line is as thick as what its heads add to the joint effect; a token that reads itself has a dot.
function arrowShapes({ start, end, y, effect, names }) {
  const area = (from, to) => svg("line", { class: "hit-area", x1: from, x2: to, y1: y, y2: y });
  const lead = names.led ? [svg("line", { class: "lead", x1: end, x2: names.left, y1: y, y2: y })] : [];
  if (start === end) {
    return [...lead, svg("circle", { class: "dot", cx: start, cy: y, r: 4 }), area(start - 6, end + 6)];
  }
  const thickness = 1.2 + 3.6 * Math.min(Math.abs(effect), 1.2);
  const tip = 5 + thickness;
  const neck = end - tip;
  const corners = `${end},${y} ${neck},${y - tip * 0.6} ${neck},${y + tip * 0.6}`;
  return [
    ...lead,
    svg("line", { class: "shaft", x1: start, x2: neck, y1: y, y2: y, "stroke-width": thickness }),
    svg("polygon", { class: "tip", points: corners }),
    area(start, end),
  ];
}

// The names of the first heads side by side, and how many more there are.
function placeChips(circuit, { heads, names: { named, left } }) {
  const { pill_widths: widths, pill_gap: gap } = circuit.picture;
  const chips = heads.slice(0, named).map((head) => ({ head, text: nameOf(circuit, head) }));
  if (heads.length > named) chips.push({ head: null, text: `+${heads.length - named}` });
  let x = left;
  return chips.map((chip) => {
    const width = widths[chip.text.length];
    x += width + gap;
    return { ...chip, x: x - width - gap, width };
  });
}

function drawChip(circuit, { mapping, front, y }, { head, text, x, width }, item) {
  const rect = svg("rect", { x, y: y - CHIP / 2, width, height: CHIP, rx: 9 });
  const name = svg("text", { x: x + width / 2, y: y + 4, "data-space": width - 8 }, text);
  const made = itemShape(circuit, item, `chip-head${front ? " front" : ""}`, rect, name);
  if (head === null) return made;
  return setLabel(made, headText(circuit, mapping, head, carriersOf(mapping, state.percentage)));
}

function drawOutput(circuit, { output: { x, y, width, height } }) {
  const rect = svg("rect", { x: x - width / 2, y, width, height, rx: 9 });
  const lines = circuit.output.map((line, index) => {
    const place = { x, y: y + 18 + 16 * index, "data-space": width - 12 };
    return svg("text", { class: index ? "small" : "name", ...place }, line);
  });
  return makeSelectable(itemShape(circuit, "output", "output", rect, ...lines), circuit, "output");
}

// What the mapping in front says, at the upper left: `Modulated at 80% by` and as many heads as have space.
function drawCaption(circuit) {
  const { mapping, carriers } = chosen(circuit);
  const { axis: x, captions } = circuit.picture;
  const space = mapping && captions[circuit.mappings.indexOf(mapping)];
  if (!space) return [];
  const [alone, withMore] = space; // how many names fit alone, and before `and 2 more`
  const names = carriers.map(({ head }) => nameOf(circuit, head));
  const more = ` and ${names.length - withMore} more`;
  const text = names.length <= alone ? names.join(" ") : names.slice(0, withMore).join(" ") + more;
  return [
    svg("text", { class: "modulated", x, y: 18 }, captionOf(mapping, carriers)),
    svg("text", { class: "names", x, y: 36 }, text),
  ];
}

function captionOf(mapping, carriers) {
  if (mapping.doubts.length) return "Modulation withheld";
  if (carriers.length) return `Modulated at ${percent(modulationOf(mapping, carriers))} by`;
  return mapping.unfinished ? MEASURING : "Carried by no head";
}

function drawColumn(column, token, foot) {
  return Array.isArray(token.position)
    ? drawGap(column, token, foot)
    : drawToken(column.circuit, token, foot);
}

// The word of a token with its number above it.
function tokenShapes({ text, x, left, width }, number, foot) {
  const word = svg("text", { class: "word", x, y: foot + 33, "data-space": width - 6 }, text);
  if (/[\u0590-\u08ff]/.test(text)) word.setAttribute("direction", "rtl");
  return [
    svg("rect", { class: "background", x: left + 1, y: foot + 2, width: width - 2, height: 50, rx: 7 }),
    svg("text", { class: "at", x, y: foot + 15 }, number),
    word,
  ];
}

// A token with a bar as high as its total to the chosen query; the query is underlined.
function drawToken(circuit, token, foot) {
  const { position, x, left, right } = token;
  const { pair } = chosen(circuit);
  const totals = totalsOf(circuit, pair[1]);
  const largest = Math.max(SMALLEST_SCALE, ...[...totals.values()].map(Math.abs));
  const total = totals.get(position);
  const height = total === undefined ? 0 : Math.max(1, (14 * Math.abs(total)) / largest);
  const barName = total < 0 ? "bar against" : "bar";
  const shapes = tokenShapes(token, position, foot);
  shapes.push(svg("rect", { class: barName, x: x - 7, y: foot + 51 - height, width: 14, height }));
  const roles = rolesOf(position, pair);
  if (roles.includes("query")) {
    const y = foot + 38;
    shapes.push(svg("line", { class: "underline", x1: left + 7, x2: right - 7, y1: y, y2: y }));
  }
  const item = `token:${position}`;
  const wanted = state.picking === "key" ? [position, pair[1]] : [pair[0], position];
  const isAbsent = !mappingOf(circuit, wanted) && !live.askMapping;
  const names = ["token", ...roles, ...(isAbsent ? ["absent"] : [])];
  const made = itemShape(circuit, item, names.join(" "), ...shapes);
  made.setAttribute("data-position", position);
  made.setAttribute("aria-pressed", String(roles.includes(state.picking)));
  const absent = isAbsent ? `, not in this file as ${state.picking}` : "";
  setLabel(made, `${itemText(circuit, item)}${absent}; choose it as ${state.picking}`);
  return makeSelectable(made, circuit, item, () => chooseToken(circuit, position));
}

// A gap in a long prompt; a click shows its tokens.
function drawGap({ circuit, picture }, token, foot) {
  const [first, last] = token.position;
  const count = last - first + 1;
  const open = () => {
    const tokens = Array.from({ length: count }, (_, step) => first + step);
    const columns = columnsOf(circuit).flatMap((each) => (each === token.position ? tokens : [each]));
    update({ opened: { ...state.opened, [circuit.id]: columns } });
    picture.querySelector(`[data-position="${first}"]`).focus();
  };
  const attributes = { class: "item token gap", role: "button", tabindex: -1, "data-item": `gap:${first}` };
  const made = svg("g", attributes, ...tokenShapes(token, `+${count}`, foot));
  made.addEventListener("click", open);
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") open();
  });
  return setLabel(made, `show the ${count} tokens from position ${first} to ${last}`);
}

// Under a token, the layers of its box.
function drawHeld({ picture }, { position, x, width }, foot, pair) {
  const name = position === pair[0] ? "held key" : "held";
  const attributes = { class: name, x, y: foot + HELD, "aria-hidden": "true", "data-space": width - 2 };
  return svg("text", attributes, Array.isArray(position) ? "" : picture.held[position]);
}

function drawGroup({ text, start, end, middle, y }) {
  return [
    svg("path", { class: "tie", d: `M${start} ${y - 8}V${y - 4}H${end}V${y - 8}` }),
    svg("text", { class: "group", x: middle, y: y + 8 }, text),
  ];
}
