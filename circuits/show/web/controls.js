// How far to trust a circuit: the verdict on its question, and the controls of the chosen mapping.

import { modulationOf } from "./circuit.js";
import { element, fillFacts } from "./dom.js";
import { chosen } from "./state.js";
import { MEASURING, number, numberSoFar, percent, plural, tokenAt, verdictOf } from "./text.js";

export function renderVerdict({ circuit, verdict }) {
  const { kind, title, sentence, reasons } = verdictOf(circuit, chosen(circuit).mapping);
  verdict.className = `verdict ${kind}`;
  verdict.replaceChildren(element("p", {}, element("b", { text: title }), ` – ${sentence}`));
  const list = element("ul", {}, ...reasons.map((text) => element("li", { text })));
  if (reasons.length) verdict.append(list);
}

export const totalFacts = (mapping) => [
  ["Total", number(mapping.total), "share of the gap: all heads of this mapping at once"],
  ["Restore", numberSoFar(mapping, mapping.restore), "share of the gap: the total in the other direction"],
];

export function renderControls({ circuit, controls: list }) {
  const { mapping, carriers } = chosen(circuit);
  if (!mapping) return fillFacts(list, []);
  const ofTotal = carriers.length ? `, ${percent(modulationOf(mapping, carriers))} of the total` : "";
  const meaning = `share of the gap: joint effect of ${plural(carriers.length, "head")}${ofTotal}`;
  const areSought = mapping.unfinished && !mapping.path.length;
  const joint = carriers.length ? carriers.at(-1).joint : 0;
  const carried = areSought ? ["Carriers", MEASURING, ""] : ["Carriers", number(joint), meaning];
  const facts = [...totalFacts(mapping), carried];
  const { controls } = mapping;
  if (!controls) {
    const pending = circuit.unfinished ? [MEASURING, ""] : ["–", "not measured for this mapping"];
    return fillFacts(list, [...facts, ["Controls", ...pending]]);
  }
  const { random_mean, random_p95, random_draws, sufficiency, identity, key_totals } = controls;
  const share = percent(controls.share);
  const pool = controls.random_pool ?? null;
  const from = pool === null ? "all heads, carriers included" : `the ${pool} that are no carriers`;
  const draws = `95th percentile ${number(random_p95)} of ${random_draws} draws among ${from}`;
  const asMany = `share of the gap: as many as carry ${share} of the total; ${draws}`;
  facts.push(["Random heads", number(random_mean), asMany]);
  const left = `share of the total that is left with only the carriers at ${share}`;
  facts.push(["Sufficiency", number(sufficiency), left]);
  const others = [...key_totals.keys()].filter((position) => position !== mapping.key);
  others.sort((a, b) => Math.abs(key_totals[b]) - Math.abs(key_totals[a]));
  if (others.length) {
    const where = `share of the gap: largest total of another key, ${tokenAt(circuit, others[0])}`;
    facts.push(["Next key", number(key_totals[others[0]]), where]);
  }
  const size = identity < 1e-5 ? "below 1e-5" : identity.toExponential(0); // else the digits are rounding
  return fillFacts(list, [...facts, ["Identity", size, "clean patched into clean; should be 0"]]);
}
