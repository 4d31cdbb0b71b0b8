// Speaking with the server: questions go out, what is measured comes in and is shown as it grows.

const STAGES = { carriers: "finding carriers", writers: "who wrote what it reads" };

async function send(path, body) {
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  } catch {
    throw new Error("the server does not answer; start circuits explore again");
  }
  const text = await answer.text();
  let read = null;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error(text.trim() || `the server refused (${answer.status})`);
  }
  if (!answer.ok || read.error) throw new Error(read.error || `the server refused (${answer.status})`);
  return read;
}

// Ask for a job and hear it to its end; resolves with true if it was answered.
async function hear(path, body, heard = {}) {
  const { job } = await send(path, body);
  heard.begun?.(job);
  return new Promise((resolve, reject) => {
    const source = new EventSource(`jobs/${job}`);
    const end = (act) => (event) => {
      source.close();
      act(event);
    };
    for (const name of Object.keys(heard)) source.addEventListener(name, (event) => heard[name](JSON.parse(event.data), job));
    source.addEventListener("done", end((event) => resolve(JSON.parse(event.data))));
    source.addEventListener("cancelled", end(() => resolve(null)));
    source.addEventListener("failed", end((event) => reject(new Error(JSON.parse(event.data).error))));
    source.onerror = end(() => reject(new Error("the server does not answer; start circuits explore again")));
  });
}

// Show a circuit, or more of one that is shown already.
function receive(packed) {
  unpack(packed);
  const known = data.circuits.find((circuit) => circuit.id === packed.id);
  if (known) Object.assign(known, packed);
  else data.circuits.push(packed);
  if (groupOf(packed) !== state.group) return renderPicker();
  const column = columns.find((each) => each.circuit === known);
  if (!column) return showGroup();
  renderColumn(column);
  return keepAddress();
}

const live = {
  start: () => startAsking(),
  // The same pair with another key or query.
  askAlso(circuit, pair) {
    const first = data.circuits.filter((each) => groupOf(each) === groupOf(circuit));
    const group = newGroup();
    Promise.all(first.map((each) => {
      const ends = each === circuit || each.words.length === circuit.words.length ? pair : alignedPair(readingOf(circuit), readingOf(each), pair);
      return ends && askFor({ ...each.asking, key: ends[0], query: ends[1], group });
    }));
  },
  whyButton(circuit, head, pair) {
    const act = async (event) => {
      event.target.disabled = true;
      event.target.textContent = "measuring…";
      try {
        await hear("why", { job: circuit.id, head: nameOf(circuit, head), key: pair[0], query: pair[1] }, { why: (told) => circuit.whys.push(told) });
        sayError("");
      } catch (error) {
        sayError(error.message);
      }
      columns.forEach(renderInspector);
    };
    return element("button", { type: "button", class: "tool why", text: "Why? Who wrote what it reads", onclick: act });
  },
};

const readingOf = (circuit) => ({ words: circuit.words, bos: circuit.bos });
const newGroup = () => `q${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
