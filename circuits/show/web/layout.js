// Where everything stands in the diagram, in pixels: tokens are columns, layers are rows, layer 0 lowest.
//
// `show/layout.py` places what is printed. The page cannot use its positions: the slider changes which heads
// carry a mapping, a click opens a gap or brings another mapping to the front, and only the browser knows how
// wide a word is in the reader's font. What does not depend on these comes from the package: the positions
// shown, the carriers at every share, what each head adds, and the labels.
//
// `measure(text, size, isBold)` gives the width of a text, so nothing here needs a page.

import { carriersOf, isPair, nameOf } from "./circuit.js";

export const AXIS = 58; // the width of the scale of layers
export const CHIP = 18; // the height of a head's name
const TOP = 92; // the height of the output and the words beside it
const LANE = 26;
const THIN = 15; // the height of a layer without arrows
const FOLDED = 20;
const NEVER_FOLDED = 12; // layers of a model that is shown whole
const MOST_NAMES = 6; // on one arrow

export function layOut(circuit, { shown, pair, percentage, measure }) {
  const columns = placeColumns(circuit, shown, measure);
  const columnOf = new Map(columns.map((column) => [column.position, column]));
  const right = columns.at(-1).right;
  const arrows = [];
  for (const mapping of circuit.mappings) {
    const start = columnOf.get(mapping.key);
    const end = columnOf.get(mapping.query);
    const front = isPair(mapping, pair);
    if (!start || !end || !(mapping.drawn || front)) continue;
    const ends = { mapping, front, start: start.x, end: end.x };
    arrows.push(...arrowsOf(circuit, ends, { percentage, right, measure }));
  }
  const rows = placeRows(circuit, arrows);
  const foot = rows[0].bottom;
  const boxes = circuit.spans.flatMap((span) => boxesOf(span, columnOf, rows));
  const groups = placeGroups(circuit, columnOf, foot, measure);
  const groupLanes = Math.max(0, ...groups.map((group) => group.lane + 1));
  return {
    columns,
    rows,
    arrows,
    boxes,
    boxLabels: placeBoxLabels(boxes, arrows, measure),
    groups,
    output: placeOutput(circuit, columnOf, right, measure),
    top: TOP,
    foot,
    width: Math.max(right, ...arrows.map((arrow) => arrow.right)) + 8,
    height: foot + 62 + 18 * groupLanes,
  };
}

function placeColumns(circuit, shown, measure) {
  let right = AXIS;
  return shown.map((position) => {
    const text = Array.isArray(position) ? "…" : circuit.labels[position];
    const width = Math.max(38, measure(text, 15, true) + 18);
    right += width;
    return { position, text, width, x: right - width / 2, left: right - width, right };
  });
}

// A mapping has an arrow in each layer in which heads carry it, with the heads' names as chips on it.
function arrowsOf(circuit, { mapping, front, start, end }, { percentage, right, measure }) {
  const layers = new Map();
  for (const carrier of carriersOf(mapping, percentage)) {
    const layer = Math.floor(carrier.head / circuit.heads);
    layers.set(layer, [...(layers.get(layer) || []), carrier]);
  }
  return [...layers].map(([layer, carriers]) => {
    const chips = chipsOf(circuit, carriers, measure);
    const width = chips.reduce((sum, chip) => sum + chip.width + 3, -3);
    const left = chipsLeft(width, start, end, right);
    let x = left;
    for (const chip of chips) {
      chip.x = x;
      x += chip.width + 3;
    }
    return {
      mapping,
      front,
      layer,
      chips,
      start,
      end,
      effect: carriers.reduce((sum, carrier) => sum + carrier.gain, 0),
      left: Math.min(start, left) - 4,
      right: Math.max(end, left + width) + 4,
    };
  });
}

function chipsOf(circuit, carriers, measure) {
  const chips = carriers.slice(0, MOST_NAMES).map(({ head }) => ({ head, text: nameOf(circuit, head) }));
  const more = carriers.length - MOST_NAMES;
  if (more > 0) chips.push({ head: null, text: `+${more}` });
  for (const chip of chips) chip.width = measure(chip.text, 11.5, true) + 12;
  return chips;
}

// The names stand on the arrow if it is long enough, else after it, else before it.
function chipsLeft(width, start, end, right) {
  if (end - start >= width + 26) return (start + end - width) / 2;
  if (end + 12 + width <= right) return end + 10;
  return Math.max(AXIS, start - 10 - width);
}

// Number the lanes of items so that those of one lane do not touch; give the number of lanes.
function assignLanes(items) {
  const lanes = [];
  for (const item of items) {
    const isFree = (lane) => lane.every((other) => item.right < other.left || other.right < item.left);
    const free = lanes.findIndex(isFree);
    item.lane = free < 0 ? lanes.length : free;
    if (free < 0) lanes.push([]);
    lanes[item.lane].push(item);
  }
  return lanes.length;
}

// The rows from below, and the height of every arrow.
function placeRows(circuit, arrows) {
  const lanes = [];
  for (let layer = 0; layer < circuit.layers; layer += 1) {
    const own = arrows.filter((arrow) => arrow.layer === layer);
    lanes.push(assignLanes(own.sort((a, b) => b.front - a.front)));
  }
  const rows = foldLayers(circuit, lanes);
  for (const row of rows) {
    row.isFolded = row.first < row.last;
    row.height = row.isFolded ? FOLDED : Math.max(THIN, lanes[row.first] * LANE + 8);
  }
  let bottom = TOP + rows.reduce((sum, row) => sum + row.height, 0);
  for (const row of rows) {
    row.bottom = bottom;
    row.top = bottom - row.height;
    bottom = row.top;
  }
  for (const arrow of arrows) arrow.y = rowOf(rows, arrow.layer).bottom - 4 - LANE * (arrow.lane + 0.5);
  return rows;
}

// A row is a layer; in a deep model a run of three or more layers in which nothing happens is one row.
function foldLayers(circuit, lanes) {
  const busy = new Set(circuit.spans.flatMap((span) => [...span.layers, ...span.ranges.flat()]));
  const isQuiet = (layer) => layer < circuit.layers && !lanes[layer] && !busy.has(layer);
  const rows = [];
  for (let first = 0; first < circuit.layers; first = rows.at(-1).last + 1) {
    let last = first;
    while (isQuiet(first) && isQuiet(last + 1)) last += 1;
    const folds = circuit.layers > NEVER_FOLDED && last - first >= 2;
    rows.push({ first, last: folds ? last : first });
  }
  return rows;
}

const rowOf = (rows, layer) => rows.find((row) => row.first <= layer && layer <= row.last);

// A span's box in the column of each of its positions, from its first layer to its last.
function boxesOf(span, columnOf, rows) {
  if (!span.layers.length) return [];
  const extent = ([first, last]) => {
    const top = rowOf(rows, last)?.top ?? TOP; // the output stands above all layers
    const bottom = rowOf(rows, first)?.bottom ?? TOP;
    return { top: top + 1.5, bottom: bottom - 1.5 };
  };
  const columns = span.positions.map((position) => columnOf.get(position)).filter(Boolean);
  return columns.map(({ position, x, width }) => {
    const half = Math.min(width * 0.42, 34);
    const built = span.ranges.map(extent);
    return { span, position, x: x - half, width: 2 * half, ...extent(span.layers), built };
  });
}

// The layers of each box in words, at the highest place in it that no name, arrow or other label covers;
// none where there is no such place.
function placeBoxLabels(boxes, arrows, measure) {
  const taken = [];
  for (const { chips, start, end, y } of arrows) {
    taken.push({ left: start, right: end, top: y - 4, bottom: y + 4 });
    for (const { x, width } of chips) {
      taken.push({ left: x, right: x + width, top: y - CHIP / 2, bottom: y + CHIP / 2 });
    }
  }
  const labels = [];
  for (const box of boxes) {
    const text = box.span.layer_range;
    const x = box.x + box.width / 2;
    const half = measure(text, 10, false) / 2 + 1;
    const lowest = box.bottom - 3;
    for (let y = Math.min(box.top + 12, lowest); y <= lowest; y += 3) {
      const area = { left: x - half, right: x + half, top: y - 9, bottom: y + 1 };
      if (taken.some((other) => overlap(area, other))) continue;
      taken.push(area);
      labels.push({ text, x, y, position: box.position });
      break;
    }
  }
  return labels;
}

function overlap(one, other) {
  const across = one.left < other.right && other.left < one.right;
  return across && one.top < other.bottom && other.top < one.bottom;
}

// Spans whose name is not their token's stand with their name under the sentence.
function placeGroups(circuit, columnOf, foot, measure) {
  const groups = [];
  for (const { positions, group: text } of circuit.spans) {
    const centres = positions.filter((position) => columnOf.has(position)).map((at) => columnOf.get(at).x);
    if (!text || !centres.length) continue;
    const start = Math.min(...centres);
    const end = Math.max(...centres);
    const half = measure(text, 11.5, false) / 2 + 4;
    const middle = Math.max((start + end) / 2, half + 4);
    const left = Math.min(start, middle - half);
    groups.push({ text, start, end, middle, left, right: Math.max(end, middle + half) });
  }
  assignLanes(groups);
  for (const group of groups) group.y = foot + 60 + 18 * group.lane;
  return groups;
}

function placeOutput(circuit, columnOf, right, measure) {
  const widths = circuit.output.map((line, index) => measure(line, index ? 11.5 : 13, !index));
  const width = Math.max(...widths) + 24;
  const stream = columnOf.get(circuit.words.length - 1)?.x ?? right - width / 2;
  const x = Math.min(Math.max(stream, AXIS + width / 2), right - width / 2);
  return { x, stream, y: 2, width, height: 12 + 16 * circuit.output.length };
}
