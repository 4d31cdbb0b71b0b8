// The form in which a question is put together: prompt, key, query, counterfactual. It is drawn from
// `state.form`. What the server said (tokens, next words, proposals) stands there with what it was said of,
// and is shown only as long as the form still says the same. Whenever another question is shown below, the
// form follows it.

import { EXAMPLES } from "./examples.js";
import { addRovingFocus, byId, drawIfChanged, element, replaceKeepingFocus, setLabel } from "./dom.js";
import { post, runJob } from "./server.js";
import { circuitsOf, page, pairOf, shownCircuits, state, update } from "./state.js";
import { MEASURING, percent, rolesOf, tokenAt } from "./text.js";

const TYPING_PAUSE = 200; // milliseconds without a key before the prompt is read
const LEAST_PROBABILITY = 0.005; // of a next word that is shown

const OPENING = {
  model: page.model,
  second: "", // another model that is asked the same
  prompt: "",
  key: null,
  query: null,
  swap: {}, // the counterfactual's words, by position
  tokens: null, // {model, prompt, words, spelled, bos}
  nextWords: null, // {model, prompt, words}; no words yet while they are looked for
  proposals: null, // {model, prompt, key, words}; likewise
  followed: "", // the question below that the form followed last
  isKept: false, // whether the form does not follow the next change of what is shown below
};

// Whether nobody has chosen or typed anything yet, nor is about to: the cursor is not in the form.
export const isUntouched = () => state.form === OPENING && !document.activeElement.closest(".ask");

const editForm = (changes) => update({ form: { ...state.form, ...changes } });

// Whether an answer of the server is about what the form says now.
const isCurrent = (said, ...names) => said !== null && names.every((name) => said[name] === state.form[name]);
const tokensOfForm = () => (isCurrent(state.form.tokens, "model", "prompt") ? state.form.tokens : null);

// `actions` are what the buttons do: ask, cancel, save, copy.
export function startForm(actions) {
  update({ form: OPENING });
  const option = (name) => element("option", { value: name, text: name || "none" });
  byId("model").append(...page.models.map(option));
  byId("second").append(...["", ...page.models].map(option));
  const offered = EXAMPLES.filter(({ model }) => !model || page.models.includes(model));
  const exampleButton = (example) => {
    const { name, prompt } = example;
    const onclick = () => askExample(example, actions.ask);
    return element("button", { type: "button", class: "tool", title: prompt, text: name, onclick });
  };
  byId("ask-examples").append(...offered.map(exampleButton));
  let timer = null;
  byId("prompt").addEventListener("input", ({ target }) => {
    clearTimeout(timer);
    update({ error: "", form: { ...state.form, prompt: target.value, key: null, query: null, swap: {} } });
    if (tokensOfForm()) readPrompt(); // they are known and shown, so they can be clicked at once
    else timer = setTimeout(readPrompt, TYPING_PAUSE);
  });
  byId("model").addEventListener("change", ({ target }) => {
    editForm({ model: target.value, key: null, query: null, swap: {} });
    readPrompt();
  });
  byId("second").addEventListener("change", ({ target }) => editForm({ second: target.value }));
  const buttons = { go: actions.ask, cancel: actions.cancel, save: actions.save, python: actions.copy };
  for (const [name, act] of Object.entries(buttons)) byId(`ask-${name}`).addEventListener("click", act);
  addRovingFocus(byId("ask-chips"), "button");
}

// Whatever the user must mend is one line of the form.
export async function attempt(work) {
  update({ error: "" });
  try {
    await work();
  } catch (error) {
    update({ error: error.message });
  }
}

// Reading the prompt

async function readPrompt() {
  const { model, prompt } = state.form;
  // The user may type on meanwhile.
  const isWanted = () => isCurrent({ model, prompt }, "model", "prompt");
  update({ error: "" });
  if (!prompt.trim()) return;
  let tokens = tokensOfForm();
  try {
    tokens ??= { model, prompt, ...(await post("tokens", { model, prompt })) };
  } catch (error) {
    if (isWanted()) update({ error: error.message });
    return;
  }
  if (!isWanted()) return;
  editForm({ tokens, query: state.form.query ?? tokens.words.length - 1 });
  if (!isCurrent(state.form.nextWords, "model", "prompt")) loadNextWords();
}

function loadNextWords() {
  return attempt(async () => {
    const { model, prompt } = state.form;
    const show = (words) => {
      if (isCurrent({ model, prompt }, "model", "prompt")) editForm({ nextWords: { model, prompt, words } });
    };
    show(null);
    await runJob("next", { model, prompt }, { words: show });
  });
}

// A click on a token sets the end that the switch names.
function chooseToken(position) {
  editForm({ [state.picking]: position });
  if (state.picking === "key") proposeWords();
}

// Words for the key's place. What the user wrote there in the meantime stays.
function proposeWords() {
  return attempt(async () => {
    const { model, prompt, key, tokens } = state.form;
    editForm({ swap: {} });
    if (tokens.bos && key === 0) return;
    const show = (words) => {
      if (!isCurrent({ model, prompt, key }, "model", "prompt", "key")) return;
      const isEdited = Object.keys(state.form.swap).length > 0;
      const swap = words?.length && !isEdited ? { [key]: bare(words[0].word) } : state.form.swap;
      editForm({ proposals: { model, prompt, key, words }, swap });
    };
    show(null);
    await runJob("propose", { model, prompt, key }, { proposals: show });
  });
}

// Fill the form with an example and ask it.
async function askExample({ prompt, key, other, model }, ask) {
  editForm({ model: model || page.model, second: "", prompt, key: null, query: null, swap: {} });
  await readPrompt();
  const tokens = tokensOfForm();
  if (!tokens || state.form.prompt !== prompt) return;
  const position = tokens.spelled.lastIndexOf(key);
  if (position < 0) {
    update({ error: `${state.form.model} cuts this prompt into other tokens; click the key among them` });
    return;
  }
  editForm({ key: position, query: tokens.words.length - 1, swap: { [position]: other } });
  await ask();
}

const bare = (word) => word.trim() || word;

function editToken(position, text) {
  const swap = { ...state.form.swap };
  if (text === bare(tokensOfForm().words[position]) || text === "") delete swap[position];
  else swap[position] = text;
  editForm({ swap });
}

// The question that is shown below, and following it

// The same for two questions that ask the same of the same model.
const nameOfQuestion = ({ model, prompt, key, query, swap }) =>
  JSON.stringify([model, prompt, key, query, Object.entries(swap)]);

// The question of the first column, with its tokens and the model of the second; null if nothing is shown.
function shownQuestion() {
  const answered = circuitsOf(state.group).map((circuit) => {
    const [key, query] = pairOf(circuit);
    return { question: { ...circuit.asking, key, query }, tokens: circuit };
  });
  const waiting = state.waiting.filter(({ question }) => question.group === state.group);
  const [first, second] = [...answered, ...waiting].filter(({ question }) => !question.without.length);
  if (!first) return null;
  const { model, prompt, key, query, swap } = first.question;
  const { words, spelled, bos } = first.tokens;
  const tokens = { model, prompt, words, spelled, bos };
  return { model, prompt, key, query, swap, tokens, second: second ? second.question.model : "" };
}

// Drawing

export function renderForm(changed) {
  const shown = shownQuestion();
  const name = shown ? nameOfQuestion(shown) : "";
  const { followed, isKept } = state.form;
  if (name !== followed || isKept) {
    editForm({ ...(isKept ? {} : shown), followed: name, isKept: false }); // draws again
    return;
  }
  if (changed.includes("hovered") || changed.includes("views")) return;
  const { key, query, prompt, model, second } = state.form;
  const tokens = tokensOfForm();
  for (const [id, value] of Object.entries({ prompt, model, second })) {
    if (byId(id).value !== value) byId(id).value = value;
  }
  const isComplete = tokens !== null && key !== null && key <= query;
  const isShown = isComplete && name === nameOfQuestion(state.form);
  byId("ask-tokens").hidden = !tokens;
  byId("ask-swap").hidden = !tokens || key === null;
  byId("ask-go").disabled = !isComplete;
  byId("ask-draft").textContent = shown && !isShown ? "Not asked yet: below stands another question." : "";
  byId("ask-error").textContent = state.error;
  renderActs();
  if (!tokens) return;
  byId("ask-step").textContent = instruction(state.form, tokens);
  renderChips(tokens);
  renderNextWords();
  renderProposals();
  renderCounterfactual(tokens);
}

function renderActs() {
  const { text, share } = state.progress;
  const isBusy = state.jobs.length > 0;
  const isAnswered = shownCircuits().some((circuit) => !circuit.unfinished);
  byId("ask-said").textContent = text;
  byId("ask-progress").value = Math.round(share * 100);
  byId("ask-progress").hidden = !isBusy;
  byId("ask-cancel").hidden = !isBusy;
  byId("ask-save").hidden = !isAnswered;
  byId("ask-python").hidden = !isAnswered;
}

function instruction({ key, query }, tokens) {
  if (key === null) return "Click the key: the token that is read.";
  if (key > query) {
    const order = "The key stands after the query, which reads only what comes before it";
    return `${order}: choose an earlier key or a later query.`;
  }
  return `${tokenAt(tokens, query)} reads ${tokenAt(tokens, key)}.`;
}

function renderChips(tokens) {
  const { key, query } = state.form;
  const chips = byId("ask-chips");
  const draw = () => {
    chips.replaceChildren(...tokens.words.map((_, position) => tokenButton(tokens, position)));
  };
  drawIfChanged(chips, [tokens, key, query, state.picking], () =>
    replaceKeepingFocus(chips, ".ask-chip", "data-position", draw),
  );
}

function tokenButton({ spelled }, position) {
  const roles = rolesOf(position, [state.form.key, state.form.query]);
  const attributes = {
    type: "button",
    class: ["ask-chip", ...roles].join(" "),
    tabindex: -1,
    "data-position": position,
    "aria-pressed": String(roles.includes(state.picking)),
    onclick: () => chooseToken(position),
  };
  const word = element("span", { class: "word", dir: "auto", text: spelled[position] });
  const made = element("button", attributes, word, element("span", { class: "at", text: position }));
  return setLabel(made, [spelled[position], `position ${position}`, ...roles].join(", "));
}

function renderNextWords() {
  const said = isCurrent(state.form.nextWords, "model", "prompt") ? state.form.nextWords : null;
  byId("ask-next").parentElement.hidden = !said;
  if (!said) return;
  const next = ({ spelled, probability }) =>
    element("span", { class: "next" }, element("b", { text: spelled }), ` ${percent(probability)}`);
  const likely = said.words?.filter(({ probability }) => probability >= LEAST_PROBABILITY);
  byId("ask-next").replaceChildren(...(likely ? likely.map(next) : [MEASURING]));
}

function renderProposals() {
  const said = isCurrent(state.form.proposals, "model", "prompt", "key") ? state.form.proposals : null;
  byId("ask-proposals").parentElement.hidden = !said;
  if (!said) return;
  const proposal = ({ word, spelled, says, probability }) => {
    const attributes = {
      type: "button",
      class: "proposal",
      "data-word": word,
      "aria-pressed": String(state.form.swap[said.key] === bare(word)),
      onclick: () => editForm({ swap: { [said.key]: bare(word) } }),
    };
    const answer = ` says ${says} ${percent(probability)}`;
    return element("button", attributes, element("b", { text: spelled }), answer);
  };
  const none = "no word of its kind changes the answer; write one below, or ask with noise on the key";
  const proposals = byId("ask-proposals");
  drawIfChanged(proposals, [said, state.form.swap[said.key]], () => {
    replaceKeepingFocus(proposals, ".proposal", "data-word", () => {
      if (!said.words) proposals.textContent = "looking for words that change the answer…";
      else proposals.replaceChildren(...(said.words.length ? said.words.map(proposal) : [none]));
    });
    for (const button of proposals.children) button.removeAttribute("tabindex");
  });
}

// The counterfactual's fields are made anew only when their words change, so that nothing is lost while one
// types.
function renderCounterfactual(tokens) {
  const { swap } = state.form;
  const container = byId("ask-other");
  drawIfChanged(container, [tokens.model, tokens.words, swap], () => {
    const { activeElement } = document;
    const focused = container.contains(activeElement) ? activeElement.dataset.position : null;
    const input = (word, position) => counterfactualInput(tokens, word, position);
    container.replaceChildren(...tokens.words.map(input));
    if (focused !== null) container.children[focused]?.focus();
  });
}

function counterfactualInput({ bos }, word, position) {
  const swapped = state.form.swap[position];
  const value = swapped ?? bare(word);
  const input = element("input", {
    class: swapped === undefined ? "other" : "other changed",
    size: Math.max(2, value.length),
    disabled: Boolean(bos) && position === 0,
    spellcheck: "false",
    "data-position": position,
    "aria-label": `counterfactual at position ${position}`,
  });
  input.value = value;
  input.addEventListener("change", () => editToken(position, input.value));
  return input;
}
