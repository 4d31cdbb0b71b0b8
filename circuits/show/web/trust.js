// How far to trust a column: the verdict on its question first, its controls below.

function renderVerdict(column) {
  const { circuit } = column;
  const { mapping } = measured(circuit);
  const { kind, title, words, reasons, doubts } = verdictOf(circuit, mapping);
  column.verdict.className = `verdict ${kind}`;
  const items = [...reasons, ...doubts.map((doubt) => `this mapping: ${doubt}`)];
  const list = element("ul", {}, ...items.map((text) => element("li", { text })));
  column.verdict.replaceChildren(element("p", {}, element("b", { text: title }), ` – ${words}`), ...(items.length ? [list] : []));
}

function renderControls(column) {
  const { circuit, controls } = column;
  const { mapping, carriers } = measured(circuit);
  if (!mapping) return fillFacts(controls, []);
  const facts = [
    ["Total", number(mapping.total), "all heads of this mapping at once"],
    ["Restore", number(mapping.restore), "the total in the other direction"],
    ["Carriers", number(carriers.length ? carriers[carriers.length - 1][1] : 0), `joint effect of ${carriers.length} head${carriers.length === 1 ? "" : "s"}`],
  ];
  const told = mapping.controls;
  if (!told) return fillFacts(controls, [...facts, ["Controls", "–", circuit.unfinished ? "being measured" : "not measured for this mapping"]]);
  const others = told.key_totals.map((total, at) => [total, at]).filter(([, at]) => at !== mapping.key).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
  facts.push(["Random heads", number(told.random_mean), `as many as carry ${percent(told.share)}; 95th percentile ${number(told.random_p95)} of ${told.random_draws} draws`]);
  facts.push(["Sufficiency", number(told.sufficiency), `share that is left with only the carriers at ${percent(told.share)}`]);
  if (others.length) facts.push(["Next key", number(others[0][0]), `largest total of another key: ${tokenAt(circuit, others[0][1])}`]);
  facts.push(["Identity", told.identity === 0 ? "0" : told.identity.toExponential(0), "clean patched into clean; should be 0"]);
  return fillFacts(controls, facts);
}
