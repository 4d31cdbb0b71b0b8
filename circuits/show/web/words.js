// What is said of every thing on the page: its name and its numbers, in words. Pure functions.

const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−"));
const percent = (value) => `${Math.round(value * 100)}%`;
const nameOf = (circuit, head) => `L${Math.floor(head / circuit.heads)}H${head % circuit.heads}`;
const tokenAt = (circuit, at) => `${circuit.spelled[at]} (${at})`;
const layersOf = ([first, last]) => (first === last ? `layer ${first}` : `layers ${first} to ${last}`);
const SIDES = { query: "what it asks for", key: "what it finds", value: "what it moves" };

function sayHead(circuit, mapping, head, carriers) {
  const known = effectOf(mapping, head);
  const place = carriers.findIndex(([index]) => index === head);
  const said = [nameOf(circuit, head)];
  if (place >= 0) said.push(`carrier ${place + 1} of ${carriers.length}`, `joint ${percent(carriers[place][1] / mapping.total)} of the total`);
  said.push(known ? `effect ${number(known.effect)}` : "no effect measured");
  return said.join(", ");
}

function sayBox(box) {
  const [name, ...lines] = box.lines;
  const where = `position${box.positions.length > 1 ? "s" : ""} ${box.positions.join(" and ")}`;
  return [name, where, ...lines, `largest effect ${number(box.effect)}`].join(", ");
}

function sayArrow(circuit, mapping, carriers) {
  const ends = `${tokenAt(circuit, mapping.key)} to ${tokenAt(circuit, mapping.query)}`;
  if (!carriers.length) return `${ends}: total ${number(mapping.total)}, carried by no head`;
  const names = carriers.map(([head]) => nameOf(circuit, head)).join(" ");
  const share = mapping.doubts.length ? "share withheld" : `modulated at ${percent(modulationOf(mapping, carriers))}`;
  return `${ends}: total ${number(mapping.total)}, ${share} by ${names}`;
}

function sayToken(circuit, mapping, at, [key, query]) {
  const roles = [at === key && "key", at === query && "query"].filter(Boolean).join(" and ");
  const total = totalsOf(circuit, mapping, query).get(at);
  const said = [`${circuit.spelled[at]}, position ${at}`, roles, total === undefined ? "" : `total ${number(total)} to the query`];
  return said.filter(Boolean).join(", ");
}

const sayOutput = (circuit) => `output: ${circuit.output.join(", ")}`;

function sayWriter(side, [name, position, effect, weight]) {
  const where = position === null ? name : `${name} at position ${position}`;
  return `${where} writes into the ${side}: effect ${number(effect)}, attention then ${number(weight)}`;
}

// The sentence below the diagram.
function statusOf(circuit, mapping, carriers, [key, query]) {
  const which = `${tokenAt(circuit, key)} → ${tokenAt(circuit, query)}`;
  if (key > query) return `${which} runs backwards: attention reads from a key at or before its query.`;
  if (!mapping) return `${which} carries nothing measurable, or was not measured: it is not in this file.`;
  if (mapping.unfinished && !mapping.path.length) return `${which}: its total is ${number(mapping.total)} of the gap; carriers are being found.`;
  if (!carriers.length) return `${which}: no head carries it (total ${number(mapping.total)}).`;
  const heads = `${carriers.length} of ${circuit.layers * circuit.heads} heads`;
  if (mapping.doubts.length) return `${which}: modulation withheld, ${mapping.doubts[0]}. ${heads} ${carriers.length === 1 ? "was" : "were"} selected; its total is ${number(mapping.total)} of the gap.`;
  return `${heads} ${carriers.length === 1 ? "carries" : "carry"} ${percent(modulationOf(mapping, carriers))} of ${which}; its total is ${number(mapping.total)} of the gap.`;
}

// Whether the question is one at all, before any number of its answer.
const VERDICTS = { clear: "A clear question", weak: "A weak question", none: "Not a question" };
const VERDICT_WORDS = {
  clear: "the counterfactual changes the answer, and by more than a random word would.",
  weak: "read the shares below with care:",
  none: "shares of this gap mean nothing:",
};

function verdictOf(circuit, mapping) {
  const question = circuit.question;
  const doubts = mapping ? mapping.doubts.filter((doubt) => !question || !question.reasons.includes(doubt)) : [];
  const kind = question ? question.verdict : "unknown";
  const title = VERDICTS[kind] || "Not judged";
  const words = VERDICT_WORDS[kind] || (circuit.unfinished ? "the controls are being measured." : "this file holds no control of its question.");
  return { kind, title, words, reasons: question ? question.reasons : [], doubts };
}
