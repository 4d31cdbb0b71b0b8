// Numbers, and what the page says of each item in words.

import { carriersOf, modulationOf, nameOf, totalsOf } from "./circuit.js";

// The end of a scale of effects, at least: on a smaller one, what does nothing looks strong.
export const SMALLEST_SCALE = 0.05;

export function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const text = value.toFixed(digits);
  const isZero = Number(text) === 0;
  return isZero ? text.replace("-", "") : text.replace("-", "−");
}

// What is said of all that the server has not measured yet.
export const MEASURING = "measuring…";
export const numberSoFar = (circuit, value) =>
  circuit.unfinished && (value === null || value === undefined) ? MEASURING : number(value);

export const percent = (value) => `${Math.round(value * 100)}%`;
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
export const tokenAt = (circuit, position) => `${circuit.spelled[position]} (${position})`;

export function headText(circuit, mapping, head, carriers) {
  const parts = [nameOf(circuit, head)];
  const step = carriers.findIndex((carrier) => carrier.head === head);
  if (step >= 0) {
    parts.push(`carrier ${step + 1} of ${carriers.length}`);
    parts.push(`joint ${percent(carriers[step].joint / mapping.total)} of the total`);
  }
  const measured = mapping?.heads.get(head);
  if (measured) parts.push(`effect ${number(measured.effect)}`);
  else parts.push(circuit.unfinished ? MEASURING : "no effect measured");
  return parts.join(", ");
}

export function boxText(span) {
  const [name, ...lines] = span.lines;
  const where = `position${span.positions.length > 1 ? "s" : ""} ${span.positions.join(" and ")}`;
  return [name, where, ...lines, `largest effect ${number(span.effect)}`].join(", ");
}

export function arrowText(circuit, mapping, percentage) {
  const carriers = carriersOf(mapping, percentage);
  const ends = `${tokenAt(circuit, mapping.key)} to ${tokenAt(circuit, mapping.query)}`;
  const total = `${ends}: total ${number(mapping.total)}`;
  if (!carriers.length) return `${total}, ${mapping.unfinished ? MEASURING : "carried by no head"}`;
  const names = carriers.map(({ head }) => nameOf(circuit, head)).join(" ");
  const modulated = `modulated at ${percent(modulationOf(mapping, carriers))}`;
  return `${total}, ${mapping.doubts.length ? "share withheld" : modulated} by ${names}`;
}

export function tokenText(circuit, position, [key, query]) {
  const roles = rolesOf(position, [key, query]).join(" and ");
  const total = totalsOf(circuit, query).get(position);
  const share = total === undefined ? "" : `total ${number(total)} to the query`;
  return [circuit.spelled[position], `position ${position}`, roles, share].filter(Boolean).join(", ");
}

export function rolesOf(position, [key, query]) {
  return [position === key && "key", position === query && "query"].filter(Boolean);
}

export const outputText = (circuit) => `output: ${circuit.output.join(", ")}`;

export function writerText(side, [name, position, effect, weight]) {
  const where = position === null ? name : `${name} at position ${position}`;
  return `${where} writes into the ${side}: effect ${number(effect)}, attention then ${number(weight)}`;
}

// The sentence below the diagram.
export function statusText(circuit, mapping, carriers, [key, query]) {
  const ends = `${tokenAt(circuit, key)} → ${tokenAt(circuit, query)}`;
  if (key > query) return `${ends} runs backwards: attention reads from a key at or before its query.`;
  if (!mapping) {
    const known = totalsOf(circuit, query).get(key);
    if (known === undefined) return `${ends}: its total was not measured.`;
    return `${ends}: its total is ${number(known)} of the gap; its heads were not measured.`;
  }
  const total = number(mapping.total);
  if (mapping.unfinished && !mapping.path.length) {
    return `${ends}: its total is ${total} of the gap; its carriers: ${MEASURING}`;
  }
  if (!carriers.length) return `${ends}: no head carries it (total ${total}).`;
  const one = carriers.length === 1;
  const heads = `${carriers.length} of ${circuit.layers * circuit.heads} heads`;
  if (mapping.doubts.length) {
    const selected = `${heads} ${one ? "was" : "were"} selected; its total is ${total} of the gap.`;
    return `${ends}: modulation withheld, ${mapping.doubts[0]}. ${selected}`;
  }
  const share = percent(modulationOf(mapping, carriers));
  const carried = `${heads} ${one ? "carries" : "carry"} ${share} of the total of ${ends}`;
  return `${carried}; its total is ${total} of the gap.`;
}

const VERDICTS = {
  clear: ["A clear question", "the counterfactual changes the answer, and by more than a random word would."],
  weak: ["A weak question", "read the shares below with care:"],
  none: ["Not a question", "shares of this gap mean nothing:"],
};

// The verdict on the question: its kind, a title, a sentence, and the reasons.
export function verdictOf(circuit, mapping) {
  const { question } = circuit;
  const doubts = mapping ? mapping.doubts : [];
  if (!question) {
    const reasons = doubts.map(aboutMapping);
    if (circuit.unfinished) {
      return { kind: "unknown", title: MEASURING, sentence: "the verdict comes with the controls.", reasons };
    }
    const sentence = "this file holds no control of its question.";
    return { kind: "unknown", title: "Not judged", sentence, reasons };
  }
  const [title, sentence] = VERDICTS[question.verdict];
  const further = doubts.filter((doubt) => !question.reasons.includes(doubt));
  const reasons = [...question.reasons, ...further.map(aboutMapping)];
  if (question.verdict === "clear" && doubts.length) {
    const withheld = "but the modulation of this mapping is withheld:";
    return { kind: "weak", title, sentence: withheld, reasons };
  }
  return { kind: question.verdict, title, sentence, reasons };
}

const aboutMapping = (doubt) => `this mapping: ${doubt}`;
