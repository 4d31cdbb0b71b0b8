// The circuit on a scale of layers, drawn: everything in it can be pointed at, clicked and reached by keyboard.

function renderDiagram(column) {
  const { circuit, picture } = column;
  const pair = pairOf(circuit);
  const layout = layOut(circuit, { shown: column.shown, pair, share: state.share, measure: widthOf });
  column.layout = layout;
  keepFocus(picture, ".thing", "data-thing", () => {
    const layers = ["rows", "boxes", "streams", "words", "arrows", "foot"].map((name) => shape("g", { class: name }));
    const [rows, boxes, streams, words, arrows, foot] = layers;
    picture.replaceChildren(...layers);
    drawRows(rows, circuit, layout);
    for (const box of layout.boxes) boxes.append(drawBox(circuit, box, pair));
    drawStreams(streams, layout);
    for (const { text, x, y, at } of layout.words) words.append(shape("text", { class: at === pair[0] ? "layers key" : "layers", x, y, "aria-hidden": "true" }, text));
    for (const item of [...layout.items].sort((a, b) => a.front - b.front)) drawItem(arrows, circuit, item);
    drawCaption(arrows, circuit, layout);
    arrows.append(drawOutput(circuit, layout));
    for (const token of layout.columns) foot.append(Array.isArray(token.at) ? drawGap(column, token, layout) : drawToken(circuit, token, layout));
    for (const group of layout.groups.items) drawGroup(foot, group);
  });
  picture.setAttribute("aria-label", describe(circuit));
  markThings(column);
  placeStage(column);
}

function thingShape(circuit, thing, kind, rect, ...children) {
  const made = shape("g", { class: `thing ${kind}`, role: "button", tabindex: -1, "data-thing": thing, "aria-pressed": "false" }, null, ...children);
  made.place = rect;
  return labelled(made, sayThing(circuit, thing));
}

function drawRows(layer, circuit, layout) {
  const right = layout.columns[layout.columns.length - 1].right;
  layer.append(shape("text", { class: "axis-name", x: 2, y: layout.top - 8 }, "layer"));
  layer.append(shape("line", { class: "rule", x1: AXIS - 12, x2: right, y1: layout.top, y2: layout.top }));
  for (const row of layout.rows) {
    const folded = row.first < row.last;
    if (folded) layer.append(shape("rect", { class: "folded", x: AXIS - 12, y: row.top, width: right - AXIS + 12, height: row.height }));
    layer.append(shape("line", { class: "rule", x1: AXIS - 12, x2: right, y1: row.bottom, y2: row.bottom }));
    layer.append(shape("text", { class: "axis-layer", x: AXIS - 18, y: (row.top + row.bottom) / 2 + 4 }, folded ? `${row.first}–${row.last}` : row.first));
  }
}

function drawBox(circuit, box, pair) {
  const thing = `box:${box.span.name}`;
  const rect = { x: box.x, y: box.top, width: box.width, height: box.bottom - box.top };
  const built = box.built.map(({ top, bottom }) => shape("rect", { class: "built", x: box.x, y: top, width: box.width, height: bottom - top, rx: 4 }));
  const frame = shape("rect", { class: "frame", ...rect, rx: 7 });
  const made = thingShape(circuit, thing, box.at === pair[0] ? "box key" : "box", rect, ...built, frame);
  made.setAttribute("data-positions", box.span.positions.join("+"));
  made.setAttribute("data-layers", box.span.layers.join("-"));
  return follow(made, circuit, thing);
}

// The stream of every token that is read or written, up to its highest arrow.
function drawStreams(layer, layout) {
  const tops = new Map();
  for (const item of layout.items) {
    for (const x of [item.start, item.end]) {
      const known = tops.get(x) || { y: layout.foot, front: false };
      tops.set(x, { y: Math.min(known.y, item.y), front: known.front || (item.front && x === item.start) });
    }
  }
  for (const [x, { y, front }] of tops) layer.append(shape("line", { class: front ? "stream front" : "stream", x1: x, x2: x, y1: layout.foot, y2: y }));
  const { output } = layout;
  layer.append(shape("path", { class: "stream out", d: `M${output.stream} ${layout.foot}V${layout.top - 8}L${output.x} ${output.y + output.height}` }));
}

function drawItem(layer, circuit, item) {
  const { mapping, start, end, y } = item;
  const thing = `arrow:${mapping.key}-${mapping.query}`;
  const thick = 1.2 + 3.6 * Math.min(Math.abs(item.effect), 1.2);
  const tip = 5 + thick;
  const way = start < end ? 1 : -1;
  const itself = start === end;
  const line = itself ? shape("circle", { class: "dot", cx: start, cy: y, r: 4 }) : shape("line", { class: "shaft", x1: start, x2: end - tip * way, y1: y, y2: y, "stroke-width": thick });
  const head = itself ? shape("g") : shape("polygon", { class: "tip", points: `${end},${y} ${end - tip * way},${y - tip * 0.6} ${end - tip * way},${y + tip * 0.6}` });
  const grip = shape("line", { class: "grip", x1: start - (itself ? 6 : 0), x2: end + (itself ? 6 : 0), y1: y, y2: y });
  const against = item.effect < 0 ? " against" : "";
  const rect = { x: Math.min(start, end) - 4, y: y - 8, width: Math.abs(end - start) + 8, height: 16 };
  const arrow = thingShape(circuit, thing, `arrow${item.front ? " front" : ""}${against}`, rect, line, head, grip);
  const select = () => {
    if (!item.front) choosePair(circuit, [mapping.key, mapping.query]);
    pin(circuit, thing);
  };
  layer.append(follow(arrow, circuit, thing, select));
  for (const chip of item.chips) layer.append(drawChip(circuit, item, chip, select));
}

function drawChip(circuit, item, chip, selectArrow) {
  const thing = chip.head === null ? `arrow:${item.mapping.key}-${item.mapping.query}` : `head:${chip.head}`;
  const rect = { x: chip.x, y: item.y - CHIP / 2, width: chip.width, height: CHIP };
  const made = thingShape(circuit, thing, `chip-head${item.front ? " front" : ""}`, rect, shape("rect", { ...rect, rx: 9 }), shape("text", { x: chip.x + chip.width / 2, y: item.y + 4 }, chip.text));
  if (chip.head !== null) labelled(made, sayHead(circuit, item.mapping, chip.head, item.carriers));
  const select = () => {
    if (!item.front) choosePair(circuit, [item.mapping.key, item.mapping.query]);
    pin(circuit, thing);
  };
  return follow(made, circuit, thing, chip.head === null ? selectArrow : select);
}

function drawOutput(circuit, layout) {
  const { x, y, width, height } = layout.output;
  const rect = { x: x - width / 2, y, width, height };
  const lines = circuit.output.map((line, at) => shape("text", { class: at ? "small" : "name", x, y: y + 18 + 16 * at }, line));
  return follow(thingShape(circuit, "output", "output", rect, shape("rect", { ...rect, rx: 9 }), ...lines), circuit, "output");
}

// What the arrow in front says, at the upper left: `Modulated at 80% by` and the heads.
function drawCaption(layer, circuit, layout) {
  const { mapping, carriers } = measured(circuit);
  if (!mapping) return;
  const title = mapping.doubts.length ? "Modulation withheld" : carriers.length ? `Modulated at ${percent(modulationOf(mapping, carriers))} by` : mapping.unfinished ? "Measuring" : "Carried by no head";
  const room = layout.output.x - layout.output.width / 2 - AXIS - 12;
  let names = carriers.map(([head]) => nameOf(circuit, head));
  let more = 0;
  const text = () => names.join(" ") + (more ? ` and ${more} more` : "");
  while (names.length > 1 && widthOf(text(), 12.5, false) > room) {
    names = names.slice(0, -1);
    more = carriers.length - names.length;
  }
  if (room < 60) return;
  layer.append(shape("text", { class: "modulated", x: AXIS, y: 18 }, title), shape("text", { class: "names", x: AXIS, y: 36 }, text()));
}

function drawToken(circuit, token, layout) {
  const { mapping } = measured(circuit);
  const pair = pairOf(circuit);
  const at = token.at;
  const totals = totalsOf(circuit, mapping, pair[1]);
  const largest = Math.max(1e-9, ...[...totals.values()].map(Math.abs));
  const total = totals.get(at);
  const tall = total === undefined ? 0 : Math.max(1, (14 * Math.abs(total)) / largest);
  const rect = { x: token.left + 1, y: layout.foot + 2, width: token.width - 2, height: 50 };
  const bar = shape("rect", { class: total < 0 ? "bar against" : "bar", x: token.x - 7, y: layout.foot + 51 - tall, width: 14, height: tall });
  const word = shape("text", { class: "word", x: token.x, y: layout.foot + 33, direction: /[\u0590-\u08ff]/.test(token.text) ? "rtl" : null }, token.text);
  const roles = [at === pair[0] && "key", at === pair[1] && "query"].filter(Boolean);
  const stored = mappingOf(circuit, state.picking === "key" ? [at, pair[1]] : [pair[0], at]);
  const made = thingShape(circuit, `token:${at}`, ["token", ...roles, stored || live ? "" : "absent"].join(" "), rect, shape("rect", { class: "ground", ...rect, rx: 7 }), shape("text", { class: "at", x: token.x, y: layout.foot + 15 }, at), word, bar);
  if (roles.includes("query")) made.append(shape("line", { class: "underline", x1: token.left + 7, x2: token.right - 7, y1: layout.foot + 38, y2: layout.foot + 38 }));
  made.setAttribute("data-at", at);
  made.setAttribute("aria-pressed", String(roles.includes(state.picking)));
  labelled(made, `${sayThing(circuit, `token:${at}`)}${stored || live ? "" : `, not in this file as ${state.picking}`}; choose it as ${state.picking}`);
  return follow(made, circuit, `token:${at}`, () => pick(circuit, at));
}

function drawGap(column, token, layout) {
  const [first, last] = token.at;
  const open = () => {
    const at = column.shown.findIndex((item) => Array.isArray(item) && item[0] === first);
    column.shown.splice(at, 1, ...Array.from({ length: last - first + 1 }, (_, step) => first + step));
    renderDiagram(column);
    const opened = column.picture.querySelector(`[data-at="${first}"]`);
    setView(column, viewWith(viewOf(column), frameOf(column), opened.place));
    opened.focus();
  };
  const rect = { x: token.left + 1, y: layout.foot + 2, width: token.width - 2, height: 50 };
  const words = `show the ${last - first + 1} tokens from position ${first} to ${last}`;
  const made = shape("g", { class: "thing token gap", role: "button", tabindex: -1, "data-thing": `gap:${first}` }, null, shape("rect", { class: "ground", ...rect, rx: 7 }), shape("text", { class: "at", x: token.x, y: layout.foot + 15 }, last - first + 1), shape("text", { class: "word", x: token.x, y: layout.foot + 33 }, "…"));
  made.place = rect;
  labelled(made, words);
  made.addEventListener("click", open);
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") open();
  });
  return made;
}

function drawGroup(layer, group) {
  const y = group.y - 4;
  layer.append(shape("path", { class: "tie", d: `M${group.start} ${y - 4}V${y}H${group.end}V${y - 4}` }), shape("text", { class: "group", x: group.middle, y: y + 12 }, group.text));
}

function markThings(column) {
  const { circuit } = column;
  for (const item of column.root.querySelectorAll(".thing[data-thing], .tile, .cell, .writer")) {
    const thing = item.getAttribute("data-thing");
    const pinned = isPinned(circuit, thing);
    item.classList.toggle("pinned", pinned);
    if (kindOf(thing) !== "token" && kindOf(thing) !== "gap") item.setAttribute("aria-pressed", String(pinned));
  }
}

function describe(circuit) {
  const { mapping, carriers } = measured(circuit);
  const pair = pairOf(circuit);
  if (!mapping) return `Diagram: ${tokenAt(circuit, pair[0])} to ${tokenAt(circuit, pair[1])} is not in this file.`;
  return `Diagram on a scale of layers. ${sayArrow(circuit, mapping, carriers)}. ${sayOutput(circuit)}.`;
}
