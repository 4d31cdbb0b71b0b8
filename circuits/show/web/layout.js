// A circuit on a scale of layers, as numbers: tokens are columns, layers are rows, heads stand where they act.
// `measure(text, size, bold)` gives a width; so nothing here needs a page.

const AXIS = 58;
const LANE = 26;
const THIN = 15;
const FOLDED = 20;
const SHALLOW = 12; // layers of a model that is never folded
const TOP = 92; // the output and the words beside it
const MOST_NAMES = 6; // of a mapping in one layer
const CHIP = 18;

function layOut(circuit, { shown, pair, share, measure }) {
  const columns = columnsOf(circuit, shown, measure);
  const xOf = (at) => columns.find((column) => column.at === at)?.x;
  const right = columns[columns.length - 1].right;
  const drawn = circuit.mappings.filter((mapping) => mapping.drawn || (mapping.key === pair[0] && mapping.query === pair[1]));
  const arrows = drawn.map((mapping) => ({ mapping, carriers: carriersOf(mapping, share), start: xOf(mapping.key), end: xOf(mapping.query), front: mapping.key === pair[0] && mapping.query === pair[1] }));
  const visible = arrows.filter((arrow) => arrow.start !== undefined && arrow.end !== undefined);
  const items = visible.flatMap((arrow) => itemsOf(circuit, arrow, right, measure));
  const lanes = Array.from({ length: circuit.layers }, (_, layer) => inLanes(items.filter((item) => item.layer === layer)));
  const rows = rowsOf(circuit, lanes);
  const height = rows.reduce((sum, row) => sum + row.height, 0);
  let y = TOP + height;
  for (const row of rows) {
    Object.assign(row, { bottom: y, top: y - row.height });
    if (row.first === row.last) lanes[row.first].forEach((lane, index) => lane.forEach((item) => Object.assign(item, { y: y - 4 - LANE * (index + 0.5) })));
    y = row.top;
  }
  const foot = TOP + height;
  const rowOf = (layer) => rows.find((row) => row.first <= layer && layer <= row.last);
  const boxes = circuit.spans.flatMap((span) => boxesOf(span, xOf, columns, rowOf));
  const words = wordsOf(boxes, items, measure);
  const groups = groupsOf(circuit, xOf, foot, measure);
  const outputWidth = Math.max(...circuit.output.map((line, at) => measure(line, at ? 11.5 : 13, !at))) + 24;
  const last = xOf(circuit.words.length - 1) ?? right - outputWidth / 2;
  const output = { x: Math.min(Math.max(last, AXIS + outputWidth / 2), right - outputWidth / 2), stream: last, y: 2, width: outputWidth, height: 12 + 16 * circuit.output.length };
  const width = Math.max(right, ...items.map((item) => item.right)) + 8;
  return { columns, rows, items, boxes, words, groups, output, foot, top: TOP, width, height: foot + 62 + 18 * groups.lanes, leftOut: arrows.length - visible.length };
}

function columnsOf(circuit, shown, measure) {
  let x = AXIS;
  return shown.map((at) => {
    const text = Array.isArray(at) ? "…" : cut(circuit.spelled[at], 16);
    const width = Math.max(38, measure(text, 15, true) + 18);
    x += width;
    return { at, text, x: x - width / 2, left: x - width, right: x, width };
  });
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// A mapping's arrows, one in each layer in which heads carry it, with the heads' names as chips on it.
function itemsOf(circuit, arrow, edge, measure) {
  const layers = new Map();
  const gains = new Map(); // what each head adds to the joint effect of those before it
  arrow.carriers.forEach(([head, joint], index) => {
    const layer = Math.floor(head / circuit.heads);
    layers.set(layer, [...(layers.get(layer) || []), head]);
    gains.set(head, joint - (index ? arrow.carriers[index - 1][1] : 0));
  });
  return [...layers].map(([layer, heads]) => {
    const chips = heads.slice(0, MOST_NAMES).map((head) => ({ head, text: nameOf(circuit, head) }));
    if (heads.length > MOST_NAMES) chips.push({ head: null, text: `+${heads.length - MOST_NAMES}` });
    for (const chip of chips) chip.width = measure(chip.text, 11.5, true) + 12;
    const wide = chips.reduce((sum, chip) => sum + chip.width + 3, -3);
    const { start, end } = arrow;
    const between = end - start >= wide + 26;
    const left = between ? (start + end - wide) / 2 : end + 12 + wide <= edge ? end + 10 : Math.max(AXIS, start - 10 - wide);
    let x = left;
    for (const chip of chips) {
      chip.x = x;
      x += chip.width + 3;
    }
    const effect = heads.reduce((sum, head) => sum + gains.get(head), 0);
    return { layer, heads, chips, start, end, effect, mapping: arrow.mapping, carriers: arrow.carriers, front: arrow.front, left: Math.min(start, left) - 4, right: Math.max(end, left + wide) + 4 };
  });
}

// Items in as few lanes as keep them apart, what is in front first.
function inLanes(items) {
  const lanes = [];
  for (const item of [...items].sort((a, b) => b.front - a.front)) {
    const free = lanes.find((lane) => lane.every((other) => item.right < other.left || other.right < item.left));
    if (free) free.push(item);
    else lanes.push([item]);
  }
  return lanes;
}

// Layers from below; in a deep model a run of three or more in which nothing happens is one row.
function rowsOf(circuit, lanes) {
  const busy = new Set(lanes.flatMap((stacked, layer) => (stacked.length ? [layer] : [])));
  for (const span of circuit.spans) for (const range of span.layers.length ? [span.layers, ...span.ranges] : span.ranges) range.forEach((layer) => busy.add(layer));
  const rows = [];
  for (let layer = 0; layer < circuit.layers; layer += 1) {
    const quiet = circuit.layers > SHALLOW && !busy.has(layer);
    const before = rows[rows.length - 1];
    if (quiet && before && before.quiet) before.last = layer;
    else rows.push({ first: layer, last: layer, quiet });
  }
  const split = rows.flatMap((row) => (row.last - row.first === 1 ? [{ ...row, last: row.first }, { ...row, first: row.last }] : [row]));
  for (const row of split) row.height = row.first < row.last ? FOLDED : Math.max(THIN, lanes[row.first].length * LANE + 8);
  return split;
}

// A span's box in the column of each of its positions, from its first layer to its last.
function boxesOf(span, xOf, columns, rowOf) {
  if (!span.layers.length) return [];
  const between = ([first, last]) => ({ top: (rowOf(last) || { top: TOP }).top + 1.5, bottom: (rowOf(first) || { bottom: TOP }).bottom - 1.5 });
  return span.positions.filter((at) => xOf(at) !== undefined).map((at) => {
    const column = columns.find((each) => each.at === at);
    const half = Math.min(column.width * 0.42, 34);
    return { span, at, x: column.x - half, width: 2 * half, ...between(span.layers), built: span.ranges.map(between) };
  });
}

// What each box says of its layers, at the highest place in it that no head's name, arrow or other words cover;
// nothing where there is no such place.
function wordsOf(boxes, items, measure) {
  const taken = items.flatMap(({ chips, start, end, y }) => [
    ...chips.map((chip) => ({ left: chip.x, right: chip.x + chip.width, top: y - CHIP / 2, bottom: y + CHIP / 2 })),
    { left: Math.min(start, end), right: Math.max(start, end), top: y - 4, bottom: y + 4 },
  ]);
  const words = [];
  for (const box of boxes) {
    const text = [...new Set(box.span.layers)].join("–");
    const [x, half] = [box.x + box.width / 2, measure(text, 10, false) / 2 + 1];
    for (let y = Math.min(box.top + 12, box.bottom - 3); y <= box.bottom - 3; y += 3) {
      const rect = { left: x - half, right: x + half, top: y - 9, bottom: y + 1 };
      if (taken.some((other) => overlap(rect, other))) continue;
      taken.push(rect);
      words.push({ text, x, y, at: box.at });
      break;
    }
  }
  return words;
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

// Spans whose name is not that of their token stand under the sentence, with their name.
function groupsOf(circuit, xOf, foot, measure) {
  const wanted = circuit.spans.filter((span) => span.positions.length > 1 || circuit.spelled[span.positions[0]] !== span.lines[0]);
  const items = [];
  for (const span of wanted) {
    const xs = span.positions.map(xOf).filter((x) => x !== undefined);
    if (!xs.length) continue;
    const [start, end] = [Math.min(...xs), Math.max(...xs)];
    const half = measure(span.lines[0], 11.5, false) / 2 + 4;
    const middle = Math.max((start + end) / 2, half + 4);
    items.push({ span, text: span.lines[0], start, end, middle, left: Math.min(start, middle - half), right: Math.max(end, middle + half), front: false });
  }
  const stacked = inLanes(items);
  stacked.forEach((lane, index) => lane.forEach((item) => Object.assign(item, { y: foot + 60 + 18 * index })));
  return { items, lanes: stacked.length };
}
