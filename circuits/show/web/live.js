// The live page: what a page of a file does, and questions to the server that it came from.

import { askAgain, startAsking } from "./ask.js";
import { nameOf } from "./circuit.js";
import { byId, element } from "./dom.js";
import { start } from "./page.js";
import { runJob } from "./server.js";
import { live, pairOf, update, state } from "./state.js";

// Measure who wrote what a head reads.
function whyButton(circuit, head) {
  const measure = async ({ target: button }) => {
    button.disabled = true;
    button.textContent = "measuring…";
    const [key, query] = pairOf(circuit);
    const request = { job: circuit.id, head: nameOf(circuit, head), key, query };
    try {
      await runJob("why", request, { why: (answer) => circuit.whys.push(answer) });
      byId("ask-error").textContent = "";
    } catch (error) {
      byId("ask-error").textContent = error.message;
    }
    update({ circuits: state.circuits });
  };
  const text = "Why? Who wrote what it reads";
  return element("button", { type: "button", class: "tool why", text, onclick: measure });
}

const openedAt = location.hash; // what the link said, before the page writes its own address
Object.assign(live, { askMapping: askAgain, whyButton });
start();
startAsking(openedAt);
