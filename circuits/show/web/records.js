// Questions to a circuit as the file holds it. Nothing is computed about the model here, nothing is drawn.

function unpack(circuit) {
  const length = circuit.words.length;
  circuit.weights = Uint8Array.from(atob(circuit.maps.data), (letter) => letter.charCodeAt(0));
  circuit.slots = new Map(circuit.maps.heads.map((head, slot) => [head, slot]));
  circuit.triangle = (length * (length + 1)) / 2;
  circuit.unfinished = Boolean(circuit.unfinished); // a live page is shown circuits while they are measured
  for (const mapping of circuit.mappings) mapping.unfinished = circuit.unfinished;
  return circuit;
}

// The mapping with which a circuit opens: the one asked for, the one in front, or the last token with the first.
const openingPair = (circuit) => circuit.asked || circuit.front || [0, circuit.words.length - 1];

const mappingOf = (circuit, [key, query]) => circuit.mappings.find((mapping) => mapping.key === key && mapping.query === query) || null;

// The greedy path up to the step that reaches the share of the total.
function carriersOf(mapping, share) {
  if (!mapping) return [];
  const reached = mapping.path.findIndex(([, joint]) => joint >= share * mapping.total - 1e-5); // as `Mapping.carriers`
  return reached < 0 ? mapping.path : mapping.path.slice(0, reached + 1);
}

const modulationOf = (mapping, carriers) => (carriers.length ? carriers[carriers.length - 1][1] / mapping.total : 0);

function effectOf(mapping, head) {
  const known = mapping && mapping.heads.find(([index]) => index === head);
  if (!known) return null;
  const [, effect, restore, loading, weight, counterfactualWeight] = known;
  return { effect, restore, loading, weight, counterfactualWeight };
}

// What the head reads on its three sides: with writers where the file has `why`, else as measured for carriers.
function sidesOf(circuit, mapping, head) {
  if (!mapping) return null;
  const why = circuit.whys.find((each) => each.head === head && each.key === mapping.key && each.query === mapping.query);
  if (why) return why;
  const known = mapping.sides.find(([index]) => index === head);
  if (!known) return null;
  const [, query, key, value, pattern, queryWeight, keyWeight] = known;
  const sides = [["query", query, queryWeight], ["key", key, keyWeight], ["value", value, null]];
  return { head, pattern, sides: sides.map(([side, effect, weight]) => ({ side, effect, weight, writers: null })) };
}

// The weight of a head's map in 0…255; null where the page does not hold the map.
function weightAt(circuit, head, query, key) {
  if (!circuit.slots.has(head)) return null;
  if (key > query) return 0;
  return circuit.weights[circuit.slots.get(head) * circuit.triangle + (query * (query + 1)) / 2 + key];
}

// How much every key gives to a query: measured as a control, else what the mappings of the file say.
function totalsOf(circuit, mapping, query) {
  const totals = new Map(circuit.mappings.filter((known) => known.query === query).map((known) => [known.key, known.total]));
  if (mapping && mapping.controls) mapping.controls.key_totals.forEach((total, key) => totals.has(key) || totals.set(key, total));
  return totals;
}

// The same ends as another model reads the prompt, or null where it cuts the text otherwise there.
function alignedPair(one, other, pair) {
  const moved = pair.map((at) => at - one.bos + other.bos);
  const same = moved.every((at, end) => at >= 0 && other.words[at]?.trim() === one.words[pair[end]].trim());
  return same ? moved : null;
}

// Positions to show, with each gap as [first, last].
function withGaps(circuit) {
  const items = circuit.shown;
  return items.map((at, index) => {
    if (at !== null) return at;
    const first = index === 0 ? 0 : items[index - 1] + 1;
    const last = index === items.length - 1 ? circuit.words.length - 1 : items[index + 1] - 1;
    return [first, last];
  });
}

// Heads and tokens whose name holds what was typed: `L9`, `9.7`, `larg`.
function found(circuit, typed) {
  const wanted = typed.trim().toLowerCase();
  if (!wanted) return [];
  const [, layer, index] = wanted.match(/^[al]?(\d+)[.h]+(\d*)$/) || [];
  const heads = [];
  for (let head = 0; head < circuit.layers * circuit.heads; head += 1) {
    const name = nameOf(circuit, head);
    const alike = layer !== undefined && name.startsWith(`L${layer}H${index}`);
    if (alike || name.toLowerCase().startsWith(wanted)) heads.push(`head:${head}`);
  }
  heads.sort((a, b) => nameOf(circuit, idOf(a)).length - nameOf(circuit, idOf(b)).length);
  const tokens = circuit.spelled.map((word, at) => [word.toLowerCase(), at]).filter(([word]) => word.includes(wanted));
  tokens.sort(([a], [b]) => (b === wanted) - (a === wanted));
  return [...tokens.map(([, at]) => `token:${at}`), ...heads];
}

// Things are named by kind and place: `head:143`, `box:5`, `arrow:5-8`, `token:5`, `output`, `writer:query-M3@9`.
const kindOf = (thing) => thing.split(":")[0];
const placeOf = (thing) => thing.slice(thing.indexOf(":") + 1);
const idOf = (thing) => Number(placeOf(thing));

// Every number of a circuit as comma-separated values, a row for each head of each mapping.
function toCsv(circuit, share) {
  const quoted = (value) => (typeof value === "string" && /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value ?? "");
  const rows = [["model", "key", "key_token", "query", "query_token", "total", "head", "effect", "restore", "loading", "weight", "counterfactual_weight", "step", "joint", "carrier"]];
  for (const mapping of circuit.mappings) {
    const steps = new Map(mapping.path.map(([head, joint], at) => [head, [at + 1, joint]]));
    const carriers = new Set(carriersOf(mapping, share).map(([head]) => head));
    const ends = [mapping.key, circuit.words[mapping.key], mapping.query, circuit.words[mapping.query], mapping.total];
    for (const [head, ...numbers] of mapping.heads) rows.push([circuit.name, ...ends, nameOf(circuit, head), ...numbers, ...(steps.get(head) || ["", ""]), carriers.has(head) ? 1 : 0]);
  }
  return rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}
