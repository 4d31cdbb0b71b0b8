// A circuit as the file holds it, and what can be asked of it. Nothing is measured here and nothing is drawn.
// A head is its number in the model: layer × heads a layer + index.

// Turn the compact lists of the file into records.
export function unpack(packed) {
  const length = packed.words.length;
  const triangle = (length * (length + 1)) / 2;
  const unfinished = Boolean(packed.unfinished); // a live page shows circuits while they are measured
  return {
    ...packed,
    unfinished,
    mappings: packed.mappings.map((mapping) => unpackMapping(mapping, unfinished)),
    weights: Uint8Array.from(atob(packed.maps.data), (letter) => letter.charCodeAt(0)),
    mapStarts: new Map(packed.maps.heads.map((head, index) => [head, index * triangle])),
  };
}

function unpackMapping(mapping, unfinished) {
  const heads = new Map();
  for (const [head, effect, restore, loading, weight, counterfactualWeight] of mapping.heads) {
    heads.set(head, { effect, restore, loading, weight, counterfactualWeight });
  }
  const sides = new Map();
  for (const [head, query, key, value, pattern, queryWeight, keyWeight] of mapping.sides) {
    const measured = [
      { side: "query", effect: query, weight: queryWeight, writers: null },
      { side: "key", effect: key, weight: keyWeight, writers: null },
      { side: "value", effect: value, weight: null, writers: null },
    ];
    sides.set(head, { head, pattern, sides: measured });
  }
  const path = mapping.path.map(([head, joint]) => ({ head, joint }));
  return { ...mapping, unfinished, heads, sides, path };
}

export const nameOf = (circuit, head) => `L${Math.floor(head / circuit.heads)}H${head % circuit.heads}`;

export function headNamed(circuit, name) {
  const [, layer, index] = name.match(/^L(\d+)H(\d+)$/);
  return Number(layer) * circuit.heads + Number(index);
}

// The mapping with which a circuit opens: the one asked for, the one in front, or first token to last token.
export const openingPair = (circuit) => circuit.asked || circuit.front || [0, circuit.words.length - 1];

export const isPair = (mapping, [key, query]) => mapping.key === key && mapping.query === query;

export const mappingOf = (circuit, pair) => circuit.mappings.find((mapping) => isPair(mapping, pair)) || null;

// The first steps of the greedy path; the file says how many of them reach each percentage of the total.
export function carriersOf(mapping, percentage) {
  return mapping ? mapping.path.slice(0, mapping.carriers[percentage - 1]) : [];
}

export const modulationOf = (mapping, carriers) =>
  carriers.length ? carriers.at(-1).joint / mapping.total : 0;

// What a head reads on its three sides; with the writers of each where the file holds an answer of `why`.
export function sidesOf(circuit, mapping, head) {
  if (!mapping) return null;
  const why = circuit.whys.find((each) => each.head === head && isPair(each, [mapping.key, mapping.query]));
  return why || mapping.sides.get(head) || null;
}

// A writer is named `head-side-number`, as in `143-query-0`.
export function writerAt(circuit, mapping, place) {
  const [head, side, index] = place.split("-");
  const { writers } = sidesOf(circuit, mapping, Number(head)).sides.find((each) => each.side === side);
  return [side, writers[Number(index)]];
}

// One weight of a head's attention map, 0…255; null where the page does not hold the map.
export function weightAt(circuit, head, query, key) {
  if (!circuit.mapStarts.has(head)) return null;
  if (key > query) return 0;
  return circuit.weights[circuit.mapStarts.get(head) + (query * (query + 1)) / 2 + key];
}

// The total of every key to this query: of the mappings in the file, else as measured for their controls.
export function totalsOf(circuit, query) {
  const totals = new Map();
  const known = circuit.mappings.filter((mapping) => mapping.query === query);
  for (const { controls } of known) {
    for (const [key, total] of controls?.key_totals.entries() || []) totals.set(key, total);
  }
  for (const { key, total } of known) totals.set(key, total);
  return totals;
}

// The same positions in another model's tokens; null where that model cuts the text into other tokens there.
export function alignedPositions(one, other, positions) {
  const aligned = positions.map((position) => position - one.bos + other.bos);
  const sameWord = (position, index) => other.words[position]?.trim() === one.words[positions[index]].trim();
  return aligned.every(sameWord) ? aligned : null;
}

// The tokens that contain what was typed, then the heads whose name begins with it: `larg`, `L9`, `9.7`.
export function search(circuit, typed) {
  const wanted = typed.trim().toLowerCase();
  if (!wanted) return [];
  const [, layer, index] = wanted.match(/^[al]?(\d+)[.h]+(\d*)$/) || [];
  const heads = [];
  for (let head = 0; head < circuit.layers * circuit.heads; head += 1) {
    const name = nameOf(circuit, head);
    const byNumbers = layer !== undefined && name.startsWith(`L${layer}H${index}`);
    if (byNumbers || name.toLowerCase().startsWith(wanted)) heads.push(head);
  }
  heads.sort((a, b) => nameOf(circuit, a).length - nameOf(circuit, b).length);
  const positions = [...circuit.spelled.keys()];
  const word = (position) => circuit.spelled[position].toLowerCase();
  const tokens = positions.filter((position) => word(position).includes(wanted));
  tokens.sort((a, b) => (word(b) === wanted) - (word(a) === wanted));
  return [...tokens.map((position) => `token:${position}`), ...heads.map((head) => `head:${head}`)];
}

const CSV_HEADER = [
  ["model", "key", "key_token", "query", "query_token", "total", "head"],
  ["effect", "restore", "loading", "weight", "counterfactual_weight", "step", "joint", "carrier"],
].flat();

// Every number of a circuit as comma-separated values, a row for each head of each mapping.
export function toCsv(circuit, percentage) {
  const rows = [CSV_HEADER];
  for (const mapping of circuit.mappings) {
    const { key, query, total, path } = mapping;
    const carriers = carriersOf(mapping, percentage).length;
    for (const [head, numbers] of mapping.heads) {
      const step = path.findIndex((each) => each.head === head);
      const onPath = step < 0 ? ["", ""] : [step + 1, path[step].joint];
      const isCarrier = step >= 0 && step < carriers ? 1 : 0;
      const ends = [key, circuit.words[key], query, circuit.words[query]];
      const name = nameOf(circuit, head);
      rows.push([circuit.name, ...ends, total, name, ...Object.values(numbers), ...onPath, isCarrier]);
    }
  }
  return rows.map((row) => row.map(csvCell).join(",") + "\r\n").join("");
}

// Numbers stay numbers. A text that a spreadsheet would take for a formula gets an apostrophe in front of it.
function csvCell(value) {
  if (typeof value !== "string") return value ?? "";
  const text = /^(\s*[=+\-@]|[\t\r])/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
