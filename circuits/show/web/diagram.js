// The diagram of a column: the sentence as buttons, and above it boxes, the output and the arrow as shapes.

const BOX_LINE = 16;
const BOX_APART = 12;
const RULER = document.createElement("canvas").getContext("2d");

function widthOf(text, bold) {
  RULER.font = `${bold ? 600 : 400} ${bold ? 13 : 11.5}px ${getComputedStyle(document.body).fontFamily}`;
  return RULER.measureText(text).width;
}

function buildSentence(column) {
  const { circuit, sentence } = column;
  sentence.replaceChildren();
  column.tokens = new Map();
  for (const at of column.shown) {
    if (at === null) sentence.append(element("span", { class: "gap", text: "…" }));
    else if (Array.isArray(at)) sentence.append(gapButton(column, at));
    else sentence.append(tokenButton(column, at));
  }
}

function tokenButton(column, at) {
  const { circuit } = column;
  const bar = element("span", { class: "bar", "aria-hidden": "true" });
  const word = element("span", { class: "word", dir: "auto", text: circuit.spelled[at] });
  const button = element("button", { type: "button", class: "token", "data-at": at, onclick: () => pick(circuit, at) }, word, element("span", { class: "at", text: at }), bar);
  column.tokens.set(at, { button, bar });
  return button;
}

function gapButton(column, [first, last]) {
  const open = () => {
    const at = column.shown.findIndex((item) => Array.isArray(item) && item[0] === first);
    const opened = Array.from({ length: last - first + 1 }, (_, step) => first + step);
    column.shown.splice(at, 1, ...opened);
    buildSentence(column);
    renderColumn(column);
    column.tokens.get(first).button.focus();
  };
  const label = `show the ${last - first + 1} tokens from position ${first} to ${last}`;
  return element("button", { type: "button", class: "token gap", "aria-label": label, title: label, onclick: open }, element("span", { class: "word", text: "…" }), element("span", { class: "at", text: `${last - first + 1}` }));
}

// Positions to show, with each gap as [first, last].
function withGaps(circuit) {
  const items = circuit.shown.slice();
  return items.map((at, index) => {
    if (at !== null) return at;
    const first = index === 0 ? 0 : items[index - 1] + 1;
    const last = index === items.length - 1 ? circuit.words.length - 1 : items[index + 1] - 1;
    return [first, last];
  });
}

// How much every key gives to the chosen query: measured as a control, else what the mappings of the file say.
function totalsOf(circuit, mapping) {
  const { query } = pairOf(circuit);
  const totals = new Map(circuit.mappings.filter((known) => known.query === query).map((known) => [known.key, known.total]));
  if (mapping && mapping.controls) mapping.controls.key_totals.forEach((total, key) => totals.has(key) || totals.set(key, total));
  return totals;
}

function renderSentence(column, mapping) {
  const { circuit } = column;
  const { key, query } = pairOf(circuit);
  const totals = totalsOf(circuit, mapping);
  const largest = Math.max(1e-9, ...[...totals.values()].map(Math.abs));
  for (const [at, { button, bar }] of column.tokens) {
    const roles = [at === key && "key", at === query && "query"].filter(Boolean);
    const candidate = state.picking === "key" ? [at, query] : [key, at];
    const stored = circuit.mappings.some((known) => known.key === candidate[0] && known.query === candidate[1]);
    button.classList.toggle("key", at === key);
    button.classList.toggle("query", at === query);
    button.classList.toggle("absent", !stored);
    const total = totals.get(at);
    button.setAttribute("aria-pressed", String(roles.includes(state.picking)));
    const said = [`${circuit.spelled[at]}, position ${at}`, roles.join(" and "), total === undefined ? "" : `total ${number(total)} to the query`, stored ? "" : `not in this file as ${state.picking}`];
    button.setAttribute("aria-label", said.filter(Boolean).join(", "));
    button.title = total === undefined ? "" : `total of ${tokenAt(circuit, at)} → ${tokenAt(circuit, query)}: ${number(total)}`;
    bar.style.height = total === undefined ? "0" : `${Math.max(1, (16 * Math.abs(total)) / largest)}px`;
    bar.classList.toggle("against", total < 0);
  }
  const items = [...column.sentence.querySelectorAll("button")];
  const chosen = column.tokens.get(state.picking === "key" ? key : query);
  if (!items.includes(document.activeElement)) settle(items, chosen ? chosen.button : items[0]);
}

// Boxes

const boxOf = (lines, positions, kind = "") => ({
  lines, positions, kind,
  width: Math.max(44, ...lines.map((line, at) => widthOf(line, at === 0))) + 20,
  height: 12 + BOX_LINE * lines.length,
});

function boxesOf(circuit) {
  const { key, query } = pairOf(circuit);
  const last = circuit.words.length - 1;
  const spans = circuit.spans.map((span) => boxOf(span.lines, span.positions));
  const plain = (at) => boxOf([circuit.spelled[at], `pos ${at}`], [at]);
  // A position stands in the span with the fewest positions; the key and the query never share a box.
  const boxAt = (at) => spans.filter((box) => box.positions.includes(at)).sort((a, b) => a.positions.length - b.positions.length)[0];
  const atKey = boxAt(key) || plain(key);
  const ownBox = boxAt(query) !== atKey && boxAt(query);
  const atQuery = key === query ? null : ownBox || (query === last ? null : plain(query));
  const row = spans.filter((box) => box !== atQuery);
  if (!row.includes(atKey)) row.push(atKey);
  atKey.kind = "key";
  return { row, atKey, atQuery, output: boxOf(circuit.output, [last], "output") };
}

const meanPosition = (box) => box.positions.reduce((sum, at) => sum + at, 0) / box.positions.length;

function pushApart(boxes, left, right) {
  for (let round = 0; round < 60; round += 1) {
    for (let at = 1; at < boxes.length; at += 1) {
      const overlap = boxes[at - 1].x + (boxes[at - 1].width + boxes[at].width) / 2 + BOX_APART - boxes[at].x;
      if (overlap > 0) {
        boxes[at - 1].x -= overlap / 2;
        boxes[at].x += overlap / 2;
      }
    }
  }
  let edge = right;
  for (const box of boxes.slice().reverse()) {
    box.x = Math.min(box.x, edge - box.width / 2);
    edge = box.x - box.width / 2 - BOX_APART;
  }
  edge = left;
  for (const box of boxes) {
    box.x = Math.max(box.x, edge + box.width / 2);
    edge = box.x + box.width / 2 + BOX_APART;
  }
}

function renderDiagram(column, mapping, carriers) {
  const { circuit, picture, sentence } = column;
  const tokenX = (at) => {
    const known = column.tokens.get(at);
    return known ? known.button.offsetLeft + known.button.offsetWidth / 2 : null;
  };
  const { row, atKey, atQuery, output } = boxesOf(circuit);
  const names = nameLines(circuit, carriers);
  const rowHeight = Math.max(...row.map((box) => box.height));
  const rise = 54 + 16 * (names.length + 1);
  const needed = row.reduce((sum, box) => sum + box.width + BOX_APART, 0);
  const width = Math.max(sentence.scrollWidth, column.stage.clientWidth, needed + output.width);
  const height = output.height + (atQuery ? atQuery.height + 22 : 0) + rise + rowHeight + 34;
  picture.replaceChildren();
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  picture.setAttribute("aria-label", describe(circuit, mapping, carriers));
  const middle = (box) => {
    const known = box.positions.map(tokenX).filter((x) => x !== null);
    return known.length ? known.reduce((sum, x) => sum + x, 0) / known.length : width / 2;
  };
  const inside = (x, box) => Math.min(Math.max(x, box.width / 2 + 1), width - box.width / 2 - 1);
  const last = tokenX(circuit.words.length - 1) ?? width - output.width;
  Object.assign(output, { x: inside(last, output), y: 1 });
  if (atQuery) Object.assign(atQuery, { x: inside(middle(atQuery), atQuery), y: output.y + output.height + 22 });
  for (const box of row) Object.assign(box, { x: middle(box), y: height - 34 - box.height });
  row.sort((a, b) => meanPosition(a) - meanPosition(b) || a.positions.at(-1) - b.positions.at(-1));
  pushApart(row, 1, atQuery || needed > last - 12 ? width - 1 : last - 12);
  for (const box of atQuery ? [...row, atQuery] : row) drawTies(picture, box, tokenX, height);
  drawStream(picture, output, atQuery, last, height);
  for (const box of row) drawBox(picture, box);
  if (atQuery) drawBox(picture, atQuery);
  drawBox(picture, output);
  if (mapping && atKey !== atQuery && mapping.key !== mapping.query) drawArrow(picture, atKey, atQuery || output, mapping, carriers, names);
}

function nameLines(circuit, carriers) {
  const names = carriers.slice(0, 9).map(([head]) => nameOf(circuit, head));
  const rows = Math.ceil(names.length / 3);
  const across = rows ? Math.ceil(names.length / rows) : 1;
  const lines = [];
  for (let at = 0; at < names.length; at += across) lines.push(names.slice(at, at + across).join("  "));
  if (carriers.length > names.length) lines.push(`and ${carriers.length - names.length} more`);
  return lines;
}

function drawBox(picture, box) {
  const group = shape("g", { class: `box ${box.kind}` });
  group.append(shape("rect", { x: box.x - box.width / 2, y: box.y, width: box.width, height: box.height, rx: 9 }));
  box.lines.forEach((line, at) => group.append(shape("text", { x: box.x, y: box.y + 18 + BOX_LINE * at, class: at ? "small" : "name" }, line)));
  picture.append(group);
}

function drawTies(picture, box, tokenX, height) {
  const foot = box.y + box.height;
  for (const at of box.positions) {
    const x = tokenX(at);
    if (x === null) continue;
    const half = (foot + height) / 2;
    picture.append(shape("path", { class: `tie ${box.kind}`, d: `M${x} ${height}C${x} ${half} ${box.x} ${half} ${box.x} ${foot}` }));
  }
}

function drawStream(picture, output, atQuery, last, height) {
  const through = atQuery && atQuery.positions.includes(output.positions[0]);
  const [x, y] = through ? [atQuery.x, atQuery.y] : [last, height];
  picture.append(shape("path", { class: "stream", d: `M${x} ${y}L${through ? output.x : last} ${output.y + output.height}` }));
}

function drawArrow(picture, from, to, mapping, carriers, names) {
  const beside = Math.abs(from.x - to.x) > to.width / 2 + 50;
  const side = from.x < to.x ? 1 : -1;
  const thick = 1.2 + 3 * Math.min(Math.abs(mapping.total), 1.2);
  const head = 7 + thick;
  const [x, y] = beside ? [to.x - (to.width / 2 + 2) * side, to.y + to.height / 2] : [to.x - 12 * side, to.y + to.height + 2];
  const [endX, endY] = beside ? [x - head * side, y] : [x, y + head];
  const half = (from.y + endY) / 2;
  const bends = beside ? `${from.x} ${half} ${from.x + (endX - from.x) * 0.3} ${y}` : `${from.x} ${half} ${x} ${half}`;
  picture.append(shape("path", { class: "arrow", d: `M${from.x} ${from.y}C${bends} ${endX} ${endY}`, "stroke-width": thick }));
  const wing = head * 0.55;
  const points = beside ? `${x},${y} ${endX - side},${y - wing} ${endX - side},${y + wing}` : `${x},${y} ${x - wing},${endY + 1} ${x + wing},${endY + 1}`;
  picture.append(shape("polygon", { class: "tip", points }));
  const title = carriers.length ? `Modulated at ${percent(modulationOf(mapping, carriers))} by` : "Carried by no head";
  const wide = Math.max(widthOf(title, true), ...names.map((line) => widthOf(line, false) * 1.1));
  const onLeft = from.x - 14 - wide > 0;
  const at = { x: onLeft ? from.x - 14 : Math.max(from.x, beside ? 0 : to.x) + 18, anchor: onLeft ? "end" : "start" };
  [title, ...names].forEach((line, index) => {
    const lineY = from.y - 14 - 16 * (names.length - index);
    picture.append(shape("text", { class: index ? "names" : "modulated", x: at.x, y: lineY, "text-anchor": at.anchor }, line));
  });
}

function describe(circuit, mapping, carriers) {
  const { key, query } = pairOf(circuit);
  if (!mapping) return `Diagram: ${tokenAt(circuit, key)} to ${tokenAt(circuit, query)} is not in this file.`;
  const names = carriers.map(([head]) => nameOf(circuit, head)).join(", ");
  return `Diagram: ${tokenAt(circuit, key)} to ${tokenAt(circuit, query)}, total ${number(mapping.total)}, modulated at ${percent(modulationOf(mapping, carriers))} by ${names || "no head"}. Output ${circuit.output.join(", ")}.`;
}
