// The panel in which a question is put together: prompt, key, query, counterfactual.

const ask = { reading: null, setting: "key", key: null, query: null, swap: {}, jobs: new Set(), turn: 0 };

function startAsking() {
  for (const name of data.models) {
    part("model").append(element("option", { value: name, text: name, selected: name === data.model }));
    part("beside").append(element("option", { value: name, text: name }));
  }
  part("beside").prepend(element("option", { value: "", text: "none", selected: true }));
  let waiting = null;
  part("prompt").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(readPrompt, 200);
  });
  part("model").addEventListener("change", readPrompt);
  part("ask-go").addEventListener("click", askAll);
  part("ask-cancel").addEventListener("click", () => [...ask.jobs].forEach((job) => send("cancel", { job }).catch((error) => sayError(error.message))));
  part("ask-save").addEventListener("click", saveAnswers);
  part("ask-python").addEventListener("click", () => copyText(shownCircuits().map((circuit) => circuit.call).join("\n"), part("ask-python")));
  rove(part("ask-chips"), "button");
  restoreHistory();
}

async function restoreHistory() {
  const answer = await fetch("history");
  for (const circuit of await answer.json()) data.circuits.push(unpack(circuit));
  readAddress(openedAt);
  showGroup();
  renderActs();
}

const sayError = (text) => (part("ask-error").textContent = text);

// Whatever the user must mend is one line of the panel, unless it was overtaken.
async function attempt(work, current = () => true) {
  sayError("");
  try {
    await work(current);
  } catch (error) {
    if (current()) sayError(error.message);
  }
}

function readPrompt() {
  const turn = (ask.turn += 1);
  return attempt(async (current) => {
    const prompt = part("prompt").value;
    Object.assign(ask, { reading: null, key: null, query: null, swap: {}, setting: "key" });
    renderAsk();
    if (!prompt.trim()) return;
    const reading = await send("tokens", { model: part("model").value, prompt });
    if (!current()) return;
    Object.assign(ask, { reading, query: reading.words.length - 1 });
    renderAsk();
    part("ask-next").textContent = "…";
    await hear("next", { model: part("model").value, prompt }, { words: (words) => current() && renderNext(words) });
  }, () => turn === ask.turn);
}

function renderNext(words) {
  part("ask-next").replaceChildren(...words.map(({ spelled, probability }) => element("span", { class: "next" }, element("b", { text: spelled }), ` ${percent(probability)}`)));
}

function chooseToken(at) {
  ask[ask.setting] = at;
  const chosen = ask.setting;
  ask.setting = chosen === "key" ? "query" : "key";
  renderAsk();
  if (chosen === "key") proposeWords();
}

function proposeWords() {
  const { turn, key } = ask;
  return attempt(async (current) => {
    ask.swap = {};
    renderAsk();
    if (ask.reading.bos && ask.key === 0) return;
    part("ask-proposals").textContent = "looking for words that change the answer…";
    const show = (words) => current() && renderProposals(words);
    await hear("propose", { model: part("model").value, prompt: part("prompt").value, key }, { proposals: show });
  }, () => turn === ask.turn && key === ask.key);
}

function renderProposals(words) {
  const button = (each) => element("button", { type: "button", class: "proposal", "data-word": each.word, "aria-pressed": "false", onclick: () => swapKey(each.word) }, element("b", { text: each.spelled }), ` says ${each.says} ${percent(each.probability)}`);
  part("ask-proposals").replaceChildren(...words.map(button));
  const edited = Object.keys(ask.swap).length > 0; // what the user wrote in the meantime stays
  if (words.length && !edited) swapKey(words[0].word);
  if (!words.length) part("ask-proposals").textContent = "no word of its kind changes the answer; write one below, or ask with noise on the key";
}

function swapKey(word) {
  ask.swap = { [ask.key]: word.trim() || word };
  renderAsk();
}

// Drawing the panel

function stepOf(key, query) {
  if (key === null) return "Click the key: the token that is read.";
  if (key > query) return "The key stands after the query, which reads only what comes before it: click an earlier key or a later query.";
  return ask.setting === "query" ? "Click the query: the token that reads (now the one underlined), or ask." : "Click another key, or ask.";
}

function renderAsk() {
  const { reading, key, query } = ask;
  part("ask-tokens").hidden = !reading;
  part("ask-swap").hidden = !reading || key === null;
  part("ask-go").disabled = !reading || key === null || key > query;
  if (!reading) return;
  part("ask-step").textContent = stepOf(key, query);
  const chip = (at) => {
    const roles = [at === key && "key", at === query && "query"].filter(Boolean);
    const label = [`${reading.spelled[at]}, position ${at}`, ...roles].join(", ");
    const made = element("button", { type: "button", class: ["ask-chip", ...roles].join(" "), "data-at": at, "aria-pressed": String(roles.length > 0), tabindex: -1, onclick: () => chooseToken(at) }, element("span", { class: "word", dir: "auto", text: reading.spelled[at] }), element("span", { class: "at", text: at }));
    return labelled(made, label);
  };
  keepFocus(part("ask-chips"), ".ask-chip", "data-at", () => part("ask-chips").replaceChildren(...reading.words.map((_, at) => chip(at))));
  const field = (at) => {
    const changed = ask.swap[at] !== undefined;
    const value = changed ? ask.swap[at] : reading.words[at].trim() || reading.words[at];
    const input = element("input", { class: changed ? "other changed" : "other", "data-at": at, "aria-label": `counterfactual at position ${at}`, size: Math.max(2, value.length), disabled: Boolean(reading.bos) && at === 0, spellcheck: "false" });
    input.value = value;
    input.addEventListener("change", () => editToken(at, input.value));
    return input;
  };
  keepFocusOfInputs(part("ask-other"), () => part("ask-other").replaceChildren(...reading.words.map((_, at) => field(at))));
  for (const button of part("ask-proposals").querySelectorAll("button")) button.setAttribute("aria-pressed", String(ask.swap[key] === (button.dataset.word.trim() || button.dataset.word)));
}

function keepFocusOfInputs(container, draw) {
  const at = container.contains(document.activeElement) ? document.activeElement.dataset.at : null;
  draw();
  if (at !== null) container.querySelector(`[data-at="${at}"]`)?.focus();
}

function editToken(at, text) {
  const own = ask.reading.words[at].trim() || ask.reading.words[at];
  if (text === own || text === "") delete ask.swap[at];
  else ask.swap[at] = text;
  renderAsk();
}

// Asking

function askAll() {
  return attempt(async () => {
    const [model, beside, prompt] = [part("model").value, part("beside").value, part("prompt").value];
    const group = newGroup();
    const question = { model, prompt, key: ask.key, query: ask.query, group, swap: { ...ask.swap } };
    const questions = [question];
    if (beside && beside !== model) questions.push(await forAnother(beside, question));
    state.group = group;
    state.pinned = null;
    await Promise.all(questions.map(askFor));
  });
}

// The same question as another model reads it: its positions may be others.
async function forAnother(model, question) {
  const reading = await send("tokens", { model, prompt: question.prompt });
  const places = [question.key, question.query, ...Object.keys(question.swap).map(Number)];
  const moved = alignedPair(ask.reading, reading, places);
  if (!moved) throw new Error(`${model} cuts this prompt into other tokens there; ask it alone`);
  const swap = Object.fromEntries(Object.values(question.swap).map((word, index) => [moved[index + 2], word]));
  return { ...question, model, key: moved[0], query: moved[1], swap };
}

async function askFor(question) {
  let job = null;
  state.group = question.group;
  sayProgress("asked", 0);
  const heard = {
    begun: (name) => ask.jobs.add((job = name)),
    waiting: ({ ahead }) => sayProgress(ahead ? `${ahead} before it` : "begun", 0),
    progress: ({ stage, done, total }) => sayProgress(STAGES[stage] || stage, total ? done / total : 0),
    circuit: receive,
  };
  try {
    const done = await hear("ask", question, heard);
    if (!done) dropUnfinished();
    sayProgress(done ? `answered in ${done.seconds} s` : "cancelled", 1);
  } catch (error) {
    dropUnfinished();
    sayProgress("", 1);
    sayError(error.message);
  } finally {
    ask.jobs.delete(job);
    renderActs();
  }
}

// What was cancelled half-way is not an answer.
function dropUnfinished() {
  data.circuits = data.circuits.filter((circuit) => !circuit.unfinished);
  if (!shownCircuits().length) state.group = data.circuits.length ? groupOf(data.circuits[data.circuits.length - 1]) : "";
  showGroup();
}

function sayProgress(text, share) {
  part("ask-said").textContent = text;
  part("ask-progress").value = Math.round(share * 100);
  renderActs();
}

function renderActs() {
  const busy = ask.jobs.size > 0;
  part("ask-cancel").hidden = !busy;
  part("ask-progress").hidden = !busy;
  const answered = shownCircuits().some((circuit) => !circuit.unfinished);
  part("ask-save").hidden = !answered;
  part("ask-python").hidden = !answered;
}

function saveAnswers() {
  return attempt(async () => {
    const saved = [];
    for (const circuit of shownCircuits()) saved.push((await send("save", { job: circuit.id })).folder);
    part("ask-said").textContent = `saved in ${saved.join(" and ")}`;
  });
}
