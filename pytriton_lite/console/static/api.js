// Everything that is asked of the server, its errors, and whether it can be reached.

const BASE = new URL(".", document.baseURI);
const KEYS = "pytriton-lite.headers";
const RESTRICTED = /^This API is restricted, expecting header '([^']+)'/;
const PROBE_MS = 1000;
const PATIENCE_MS = 10_000;

/** What the server answered in place of what was asked for: its status, and its own text. */
export class ServerError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** The server cannot be reached, or gave no answer. */
export class LostError extends Error {}

/** Events: "lost" and "back", and "restricted" with the name of the header that the server wants. */
export const connection = new EventTarget();
let isLost = false;

function headers() {
  return JSON.parse(sessionStorage.getItem(KEYS) ?? "{}");
}

/** Send *header* with every request from now on, as long as this tab lives. */
export function useHeader(header, value) {
  sessionStorage.setItem(KEYS, JSON.stringify({ ...headers(), [header]: value }));
}

/** The names of the headers that a person has given. */
export function headerNames() {
  return Object.keys(headers());
}

/** An address of the server, for pages behind a proxy's prefix, too. */
export function address(path) {
  return new URL(path, BASE);
}

async function ask(path, options) {
  return fetch(address(path), { credentials: "same-origin", ...options, headers: { ...options.headers, ...headers() } });
}

/** Says that the server is lost, and waits until it answers again: one wait for all who have noticed. */
export async function lose() {
  if (isLost) return;
  isLost = true;
  connection.dispatchEvent(new Event("lost"));
  while (isLost) {
    await new Promise((resolve) => setTimeout(resolve, PROBE_MS));
    try {
      await ask("v2/health/live", { signal: AbortSignal.timeout(PATIENCE_MS) });
      isLost = false;
    } catch {
      // It is still not there.
    }
  }
  connection.dispatchEvent(new Event("back"));
}

/** The answer, whatever its status. Raises LostError, or AbortError where *signal* was used. */
export async function send(path, options = {}) {
  try {
    return await ask(path, options);
  } catch (error) {
    if (options.signal?.aborted && options.signal.reason?.name !== "TimeoutError") throw error;
    lose();
    throw new LostError("The server cannot be reached.");
  }
}

/** The server's own text for an answer that is an error. */
export async function errorOf(response) {
  const body = await response.text();
  let text = body;
  try {
    text = JSON.parse(body).error ?? body;
  } catch {
    // A proxy's page, say.
  }
  const restricted = RESTRICTED.exec(text);
  if (response.status === 403 && restricted) {
    connection.dispatchEvent(new CustomEvent("restricted", { detail: restricted[1] }));
  }
  return new ServerError(response.status, text || `${response.status} ${response.statusText}`);
}

/** The document at *path*. Raises ServerError, LostError. */
export async function get(path) {
  const response = await send(path, { signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

/** Posts a document, and gives the text of the answer. Raises ServerError, LostError. It may take as long as a model loads. */
export async function post(path, body = {}) {
  const response = await send(path, {
    method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" },
  });
  if (!response.ok) throw await errorOf(response);
  return response.text();
}

/** The path of a model, or of one of its versions. */
export function modelPath(name, version = "") {
  return `v2/models/${encodeURIComponent(name)}${version ? `/versions/${version}` : ""}`;
}
