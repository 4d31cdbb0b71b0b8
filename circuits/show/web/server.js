// Requests to the server of a live page, and the events of the jobs that it measures.

const SILENT = "the server does not answer; start circuits explore again";

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  } catch {
    throw new Error(SILENT);
  }
  const text = await response.text();
  const refused = `the server refused (${response.status})`;
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    throw new Error(text.trim() || refused);
  }
  if (!response.ok || answer.error) throw new Error(answer.error || refused);
  return answer;
}

// Put a job into the server's queue; resolves with its id.
export async function startJob(path, body) {
  const { job } = await post(path, body);
  return job;
}

// Follow a job to its end. `handlers` are called with the value of each event of their name.
// Resolves with what the job says at its end, or with null if it was cancelled.
export function followJob(job, handlers) {
  return new Promise((resolve, reject) => {
    const source = new EventSource(`jobs/${job}`);
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    }
    const endOn = (name, end) =>
      source.addEventListener(name, (event) => {
        source.close();
        end(event.data && JSON.parse(event.data));
      });
    endOn("done", resolve);
    endOn("cancelled", () => resolve(null));
    endOn("failed", ({ error }) => reject(new Error(error)));
    endOn("error", () => reject(new Error(SILENT)));
  });
}

export async function runJob(path, body, handlers) {
  return followJob(await startJob(path, body), handlers);
}
