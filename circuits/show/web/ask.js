// The panel in which a question is put together: prompt, key, query, counterfactual.

import { alignedPositions, unpack } from "./circuit.js";
import { addRovingFocus, byId, copyText, element, replaceKeepingFocus, setLabel } from "./dom.js";
import { openAddress } from "./page.js";
import { post, runJob } from "./server.js";
import { circuitWith, circuitsOf, groupOf, page, shownCircuits, state, update } from "./state.js";
import { percent, rolesOf } from "./text.js";

const STAGES = { carriers: "finding carriers", writers: "who wrote what it reads" };
const TYPING_PAUSE = 200; // milliseconds without a key before the prompt is read

// A question each; the key is the last token of its spelling. Those with a model are shown where it is offered.
const EXAMPLES = [
  { name: "opposite", prompt: 'The opposite of "large" is "', key: "large", other: "hot" },
  {
    name: "names",
    prompt: "When Mary and John went to the store, John gave a drink to",
    key: "John",
    other: "Mary",
  },
  { name: "year", prompt: "The war lasted from the year 1732 to the year 17", key: "32", other: "02" },
  { name: "sum", prompt: "3 6 + 2 8 = 0", key: "8", other: "1", model: "addition" },
  {
    name: "repeat",
    prompt: " blunt clock mirror fresh lying farm blunt clock mirror",
    key: "fresh",
    other: "lying",
  },
  { name: "fact", prompt: "The capital of France is", key: "France", other: "Germany", model: "smollm2" },
];

const form = {
  tokens: null, // of the prompt, as the server read it
  setting: "key", // what the next click on a token sets
  key: null,
  query: null,
  swap: {}, // the counterfactual's words, by position
  version: 0, // of the prompt; an answer to an older one is dropped
  jobs: new Set(), // questions that are being measured
  awaited: null, // the group that is shown as soon as its first circuit comes
};

export function startAsking(openedAt) {
  const option = (name, selected) => element("option", { value: name, text: name || "none", selected });
  byId("model").append(...page.models.map((name) => option(name, name === page.model)));
  byId("beside").append(option("", true), ...page.models.map((name) => option(name, false)));
  const offered = EXAMPLES.filter(({ model }) => !model || page.models.includes(model));
  const example = (each) =>
    element("button", { type: "button", class: "tool", title: each.prompt, text: each.name, onclick: () => askExample(each) });
  byId("ask-examples").append(...offered.map(example));
  let timer = null;
  byId("prompt").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(readPrompt, TYPING_PAUSE);
  });
  byId("model").addEventListener("change", readPrompt);
  byId("ask-go").addEventListener("click", askAll);
  byId("ask-cancel").addEventListener("click", cancelAll);
  byId("ask-save").addEventListener("click", saveAnswers);
  byId("ask-python").addEventListener("click", () => {
    const calls = shownCircuits().map((circuit) => circuit.call);
    copyText(["import circuits", "", ...calls].join("\n"), byId("ask-python"));
  });
  addRovingFocus(byId("ask-chips"), "button");
  restoreHistory(openedAt);
}

async function restoreHistory(openedAt) {
  const response = await fetch("history");
  const answers = await response.json();
  update({ circuits: [...state.circuits, ...answers.map(unpack)] });
  openAddress(openedAt);
  renderButtons();
}

function showError(text) {
  byId("ask-error").textContent = text;
}

// Whatever the user must mend is one line of the panel. `isCurrent` says whether its answer is still wanted.
async function attempt(work, isCurrent = () => true) {
  showError("");
  try {
    await work(isCurrent);
  } catch (error) {
    if (isCurrent()) showError(error.message);
  }
}

// Reading the prompt

function readPrompt() {
  form.version += 1;
  const { version } = form;
  const isCurrent = () => version === form.version;
  return attempt(async () => {
    const model = byId("model").value;
    const prompt = byId("prompt").value;
    Object.assign(form, { tokens: null, key: null, query: null, swap: {}, setting: "key" });
    renderForm();
    if (!prompt.trim()) return;
    const tokens = await post("tokens", { model, prompt });
    if (!isCurrent()) return;
    Object.assign(form, { tokens, query: tokens.words.length - 1 });
    renderForm();
    byId("ask-next").textContent = "…";
    await runJob("next", { model, prompt }, { words: (words) => isCurrent() && renderNextWords(words) });
  }, isCurrent);
}

function renderNextWords(words) {
  const next = ({ spelled, probability }) =>
    element("span", { class: "next" }, element("b", { text: spelled }), ` ${percent(probability)}`);
  byId("ask-next").replaceChildren(...words.map(next));
}

function chooseToken(position) {
  const chosen = form.setting;
  form[chosen] = position;
  form.setting = chosen === "key" ? "query" : "key";
  renderForm();
  if (chosen === "key") proposeWords();
}

// Fill the form with an example and ask it.
async function askExample({ prompt, key, other, model }) {
  byId("model").value = model || page.model;
  byId("prompt").value = prompt;
  await readPrompt();
  if (!form.tokens || byId("prompt").value !== prompt) return;
  const position = form.tokens.spelled.lastIndexOf(key);
  if (position < 0) {
    showError(`${byId("model").value} cuts this prompt into other tokens; click the key among them`);
    return;
  }
  Object.assign(form, { key: position, setting: "query", swap: { [position]: other } });
  renderForm();
  await askAll();
}

// Proposals for the key's place

function proposeWords() {
  const { version, key } = form;
  const isCurrent = () => version === form.version && key === form.key;
  return attempt(async () => {
    form.swap = {};
    renderForm();
    if (form.tokens.bos && key === 0) return;
    byId("ask-proposals").textContent = "looking for words that change the answer…";
    const request = { model: byId("model").value, prompt: byId("prompt").value, key };
    await runJob("propose", request, { proposals: (words) => isCurrent() && renderProposals(words) });
  }, isCurrent);
}

function renderProposals(words) {
  const proposal = ({ word, spelled, says, probability }) => {
    const onclick = () => swapKey(word);
    const attributes = {
      type: "button",
      class: "proposal",
      "data-word": word,
      "aria-pressed": "false",
      onclick,
    };
    const answer = ` says ${says} ${percent(probability)}`;
    return element("button", attributes, element("b", { text: spelled }), answer);
  };
  const none = "no word of its kind changes the answer; write one below, or ask with noise on the key";
  byId("ask-proposals").replaceChildren(...(words.length ? words.map(proposal) : [none]));
  const isEdited = Object.keys(form.swap).length > 0; // what the user wrote in the meantime stays
  if (words.length && !isEdited) swapKey(words[0].word);
}

const bare = (word) => word.trim() || word;

function swapKey(word) {
  form.swap = { [form.key]: bare(word) };
  renderForm();
}

function editToken(position, text) {
  if (text === bare(form.tokens.words[position]) || text === "") delete form.swap[position];
  else form.swap[position] = text;
  renderForm();
}

// Drawing the panel

function instruction({ key, query, setting }) {
  if (key === null) return "Click the key: the token that is read.";
  if (key > query) {
    const order = "The key stands after the query, which reads only what comes before it";
    return `${order}: click an earlier key or a later query.`;
  }
  if (setting === "key") return "Click another key, or ask.";
  return "Click the query: the token that reads (now the one underlined), or ask.";
}

function renderForm() {
  const { tokens, key, query } = form;
  byId("ask-tokens").hidden = !tokens;
  byId("ask-swap").hidden = !tokens || key === null;
  byId("ask-go").disabled = !tokens || key === null || key > query;
  if (!tokens) return;
  byId("ask-step").textContent = instruction(form);
  const positions = [...tokens.words.keys()];
  replaceKeepingFocus(byId("ask-chips"), ".ask-chip", "data-position", () => {
    byId("ask-chips").replaceChildren(...positions.map(tokenButton));
  });
  const others = byId("ask-other");
  const focused = others.contains(document.activeElement) ? document.activeElement.dataset.position : null;
  others.replaceChildren(...positions.map(counterfactualInput));
  if (focused !== null) others.children[focused].focus();
  for (const button of byId("ask-proposals").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(form.swap[key] === bare(button.dataset.word)));
  }
}

function tokenButton(position) {
  const roles = rolesOf(position, [form.key, form.query]);
  const spelled = form.tokens.spelled[position];
  const attributes = {
    type: "button",
    class: ["ask-chip", ...roles].join(" "),
    tabindex: -1,
    "data-position": position,
    "aria-pressed": String(roles.length > 0),
    onclick: () => chooseToken(position),
  };
  const word = element("span", { class: "word", dir: "auto", text: spelled });
  const made = element("button", attributes, word, element("span", { class: "at", text: position }));
  return setLabel(made, [spelled, `position ${position}`, ...roles].join(", "));
}

function counterfactualInput(position) {
  const swapped = form.swap[position];
  const value = swapped ?? bare(form.tokens.words[position]);
  const input = element("input", {
    class: swapped === undefined ? "other" : "other changed",
    size: Math.max(2, value.length),
    disabled: Boolean(form.tokens.bos) && position === 0,
    spellcheck: "false",
    "data-position": position,
    "aria-label": `counterfactual at position ${position}`,
  });
  input.value = value;
  input.addEventListener("change", () => editToken(position, input.value));
  return input;
}

// Asking

const newGroup = () => `q${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

function askAll() {
  return attempt(async () => {
    const { key, query, swap } = form;
    const model = byId("model").value;
    const other = byId("beside").value;
    const question = {
      model,
      prompt: byId("prompt").value,
      key,
      query,
      group: newGroup(),
      swap: { ...swap },
    };
    const questions = [question];
    if (other && other !== model) questions.push(await questionFor(other, question));
    update({ pinned: null });
    await Promise.all(questions.map(ask));
  });
}

// The same question to another model, whose tokens may stand at other positions.
async function questionFor(model, question) {
  const tokens = await post("tokens", { model, prompt: question.prompt });
  const swapped = Object.keys(question.swap).map(Number);
  const positions = alignedPositions(form.tokens, tokens, [question.key, question.query, ...swapped]);
  if (!positions) throw new Error(`${model} cuts this prompt into other tokens there; ask it alone`);
  const [key, query, ...places] = positions;
  const swap = Object.fromEntries(swapped.map((position, index) => [places[index], question.swap[position]]));
  return { ...question, model, key, query, swap };
}

// The questions of a circuit's group again, with another key and query.
export function askAgain(circuit, pair) {
  const group = newGroup();
  followQuestion(circuit.asking, pair);
  for (const each of circuitsOf(groupOf(circuit))) {
    const sameLength = each.words.length === circuit.words.length;
    const ends = sameLength ? pair : alignedPositions(circuit, each, pair);
    if (ends) ask({ ...each.asking, key: ends[0], query: ends[1], group });
  }
}

// The form says what is asked, also where the question comes from a click in the diagram.
function followQuestion({ prompt, model, swap }, [key, query]) {
  if (!form.tokens || prompt !== byId("prompt").value || model !== byId("model").value) return;
  Object.assign(form, { key, query, swap: { ...swap } });
  renderForm();
}

// Measure a question. Its circuit is shown as it grows; an error is one line of the panel.
async function ask(question) {
  let job = null;
  form.awaited = question.group;
  showProgress("asked", 0);
  const onStart = (name) => {
    job = name;
    form.jobs.add(job);
  };
  const handlers = {
    waiting: ({ ahead }) => showProgress(ahead ? `${ahead} before it` : "begun", 0),
    progress: ({ stage, done, total }) => showProgress(STAGES[stage] || stage, total ? done / total : 0),
    circuit: receiveCircuit,
  };
  try {
    const done = await runJob("ask", question, handlers, onStart);
    if (!done) dropUnfinished();
    showProgress(done ? `answered in ${done.seconds} s` : "cancelled", 1);
  } catch (error) {
    dropUnfinished();
    showProgress("", 1);
    showError(error.message);
  } finally {
    form.jobs.delete(job);
    renderButtons();
  }
}

// A circuit, or more of one that is shown already. The reader may have gone to another prompt meanwhile.
function receiveCircuit(packed) {
  const circuit = unpack(packed);
  const known = circuitWith(circuit.id);
  if (known) Object.assign(known, circuit);
  const isAwaited = groupOf(circuit) === form.awaited;
  if (isAwaited) form.awaited = null;
  update({
    circuits: known ? state.circuits : [...state.circuits, circuit],
    group: isAwaited ? groupOf(circuit) : state.group,
  });
}

// A question that was cancelled or failed leaves no circuit behind.
function dropUnfinished() {
  const circuits = state.circuits.filter((circuit) => !circuit.unfinished);
  const isShown = circuits.some((circuit) => groupOf(circuit) === state.group);
  const last = circuits.length ? groupOf(circuits.at(-1)) : "";
  update({ circuits, group: isShown ? state.group : last });
}

function cancelAll() {
  for (const job of form.jobs) post("cancel", { job }).catch((error) => showError(error.message));
}

function showProgress(text, share) {
  byId("ask-said").textContent = text;
  byId("ask-progress").value = Math.round(share * 100);
  renderButtons();
}

function renderButtons() {
  const isBusy = form.jobs.size > 0;
  byId("ask-cancel").hidden = !isBusy;
  byId("ask-progress").hidden = !isBusy;
  const isAnswered = shownCircuits().some((circuit) => !circuit.unfinished);
  byId("ask-save").hidden = !isAnswered;
  byId("ask-python").hidden = !isAnswered;
}

function saveAnswers() {
  return attempt(async () => {
    const folders = [];
    for (const circuit of shownCircuits()) folders.push((await post("save", { job: circuit.id })).folder);
    byId("ask-said").textContent = `saved in ${folders.join(" and ")}`;
  });
}
