// Questions to the server: a circuit, why a head looks where it looks, and the circuit without a head.

import { alignedPositions, nameOf, unpack } from "./circuit.js";
import { byId, copyText, element } from "./dom.js";
import { attempt, isUntouched, renderForm, startForm } from "./form.js";
import { openAddress } from "./page.js";
import { followJob, post, startJob } from "./server.js";
import {
  chosen,
  circuitWith,
  circuitsOf,
  groupOf,
  live,
  pairOf,
  shownCircuits,
  state,
  update,
} from "./state.js";
import { MEASURING } from "./text.js";

const STAGES = { carriers: "finding carriers", writers: "who wrote what it reads" };

export function startAsking(openedAt) {
  startForm({ ask: askForm, cancel: cancelAll, save: saveAnswers, copy: copyPython });
  Object.assign(live, { askMapping, headActions, render: renderForm });
  return attempt(async () => {
    const response = await fetch("history");
    const answers = await response.json();
    // What was asked meanwhile may be in the history already.
    const earlier = answers.filter(({ id }) => !circuitWith(id)).map(unpack);
    update({ circuits: [...earlier, ...state.circuits] });
    if (isUntouched()) openAddress(openedAt); // who has begun a question keeps it
  });
}

// Asking

const newGroup = () => `q${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

function askForm() {
  return attempt(async () => {
    const { model, prompt, key, query, swap, second, tokens } = state.form;
    const question = { model, prompt, key, query, swap: { ...swap }, without: [], group: newGroup() };
    const asked = [{ question, tokens }];
    if (second && second !== model) asked.push(await askedOf(second, asked[0]));
    await askAll(asked);
  });
}

// The same question to another model, whose tokens may stand at other positions.
async function askedOf(model, { question, tokens }) {
  const others = await post("tokens", { model, prompt: question.prompt });
  const swapped = Object.keys(question.swap).map(Number);
  const positions = alignedPositions(tokens, others, [question.key, question.query, ...swapped]);
  if (!positions) throw new Error(`${model} cuts this prompt into other tokens there; ask it alone`);
  const [key, query, ...places] = positions;
  const swap = Object.fromEntries(swapped.map((position, index) => [places[index], question.swap[position]]));
  return { question: { ...question, model, key, query, swap }, tokens: others };
}

// Another key or query of the questions of a circuit's group: shown if they were asked before, else asked.
function askMapping(circuit, pair) {
  const group = newGroup();
  const asked = [];
  for (const each of circuitsOf(groupOf(circuit))) {
    const sameLength = each.words.length === circuit.words.length;
    const ends = sameLength ? pair : alignedPositions(circuit, each, pair);
    if (!ends) continue;
    const question = { ...each.asking, key: ends[0], query: ends[1], group };
    asked.push({ question, tokens: each });
  }
  const isAnswer = (each) => !each.unfinished && isSameQuestion(each.asking, asked[0].question);
  const before = state.circuits.find(isAnswer);
  if (before) update({ group: groupOf(before), beside: "", pinned: null });
  else askAll(asked);
}

function isSameQuestion(one, other) {
  const same = (name) => JSON.stringify(one[name]) === JSON.stringify(other[name]);
  return ["model", "prompt", "key", "query", "swap", "without"].every(same);
}

// The question of a circuit again, without one more head. Its answer stands beside the first.
function askWithout(circuit, head) {
  const without = [...circuit.asking.without, nameOf(circuit, head)];
  const waiting = { question: { ...circuit.asking, without }, tokens: circuit };
  update({ waiting: [...state.waiting, waiting], error: "" });
  ask(waiting);
}

// Show these questions, and measure them. They wait together, so that the form names both models from the
// start. Each is in the server's queue before the next is sent, so they are answered and stand in this order.
async function askAll(asked) {
  const before = { group: state.group, beside: state.beside };
  const waiting = asked.map((each) => ({ ...each, before }));
  const { group } = asked[0].question;
  update({ group, beside: "", pinned: null, waiting: [...state.waiting, ...waiting], error: "" });
  for (const each of waiting) await ask(each);
}

// Ask the server a question that waits; resolves when it is in the server's queue.
async function ask(waiting) {
  const { question } = waiting;
  update({ progress: { text: "asked", share: 0 } });
  try {
    const job = await startJob("ask", question);
    addJob(job, aboutQuestion(question));
    showAnswer(waiting, job);
  } catch (error) {
    endQuestion(waiting, null, "", error.message);
  }
}

// Show the circuit of a question as it grows.
async function showAnswer(waiting, job) {
  const handlers = {
    waiting: ({ ahead }) => showProgress(ahead ? `${ahead} before it` : "begun", 0),
    progress: ({ stage, done, total }) => showProgress(STAGES[stage] || stage, total ? done / total : 0),
    circuit: (packed) => receiveCircuit(waiting, packed),
  };
  try {
    const done = await followJob(job, handlers);
    endQuestion(waiting, job, done ? `answered in ${done.seconds} s` : "cancelled");
  } catch (error) {
    endQuestion(waiting, job, "", error.message);
  }
}

const addJob = (id, about) => update({ jobs: [...state.jobs, { id, about }] });
const aboutQuestion = ({ group, without }) => `${group} ${without.join(" ")}`;

// A circuit, or more of one that is shown already.
function receiveCircuit(waiting, packed) {
  const circuit = unpack(packed);
  const known = circuitWith(circuit.id);
  if (known) Object.assign(known, circuit);
  update({
    circuits: known ? state.circuits : [...state.circuits, circuit],
    waiting: state.waiting.filter((each) => each !== waiting),
  });
}

// A question that was cancelled or failed leaves no circuit behind. What was shown before is shown again, but
// the form keeps what it says, to be mended.
function endQuestion(waiting, job, text, error = "") {
  const circuits = state.circuits.filter((circuit) => circuit.id !== job || !circuit.unfinished);
  const stillWaiting = state.waiting.filter((each) => each !== waiting);
  const jobs = state.jobs.filter(({ id }) => id !== job);
  const groups = [...circuits.map(groupOf), ...stillWaiting.map(({ question }) => question.group)];
  const isLost = state.group !== "" && !groups.includes(state.group);
  const shown = isLost ? waiting.before : {};
  const form = { ...state.form, isKept: isLost };
  const progress = { text, share: 1 };
  update({ circuits, waiting: stillWaiting, jobs, ...shown, form, progress, error: error || state.error });
}

function showProgress(text, share) {
  update({ progress: { text, share } });
}

function cancelAll() {
  return attempt(() => Promise.all(state.jobs.map(({ id }) => post("cancel", { job: id }))));
}

// Buttons of a head

function headActions(circuit, head) {
  const { mapping } = chosen(circuit);
  if (!mapping || circuit.unfinished) return [];
  const button = (about, text, title, onclick) => {
    const isMeasured = state.jobs.some((job) => job.about === about);
    const attributes = { type: "button", class: "tool", title, disabled: isMeasured, onclick };
    return element("button", { ...attributes, text: isMeasured ? MEASURING : text });
  };
  const buttons = [];
  const name = nameOf(circuit, head);
  const isWhy = (why) => why.head === head && why.key === mapping.key && why.query === mapping.query;
  if (!circuit.whys.some(isWhy) && !circuit.asking.without.length) {
    const title = `Who wrote what ${name} reads`;
    buttons.push(button(aboutWhy(circuit, head), "Why?", title, () => askWhy(circuit, head)));
  }
  const without = [...circuit.asking.without, name];
  const isThis = ({ asking }) => asking.without.join(" ") === without.join(" ");
  if (!circuitsOf(groupOf(circuit)).some(isThis) && !circuit.asking.without.includes(name)) {
    const measured = `Measure the circuit with ${name} swapped to the counterfactual`;
    const title = `${measured}, and show it beside this one`;
    const about = aboutQuestion({ ...circuit.asking, without });
    buttons.push(button(about, `Without ${name}`, title, () => askWithout(circuit, head)));
  }
  return buttons;
}

const aboutWhy = (circuit, head) => `why ${circuit.id} ${head} ${pairOf(circuit).join("-")}`;

// Measure who wrote what a head reads.
function askWhy(circuit, head) {
  return attempt(async () => {
    const [key, query] = pairOf(circuit);
    const request = { job: circuit.id, head: nameOf(circuit, head), key, query };
    const job = await startJob("why", request);
    addJob(job, aboutWhy(circuit, head));
    try {
      await followJob(job, { why: (answer) => circuit.whys.push(answer) });
    } finally {
      update({ jobs: state.jobs.filter(({ id }) => id !== job), circuits: state.circuits });
    }
    const tree = document.querySelector(`[data-circuit="${circuit.id}"] .tree`);
    tree?.scrollIntoView({ block: "nearest" });
  });
}

// What is done with answers

function copyPython() {
  const programs = shownCircuits().map((circuit) => circuit.python);
  return copyText(["import circuits", ...programs].join("\n\n"), byId("ask-python"));
}

function saveAnswers() {
  return attempt(async () => {
    showProgress("saving…", 1);
    const folders = [];
    try {
      for (const circuit of shownCircuits()) folders.push((await post("save", { job: circuit.id })).folder);
    } finally {
      showProgress(folders.length ? `saved in ${folders.join(" and ")}` : "", 1);
    }
  });
}
