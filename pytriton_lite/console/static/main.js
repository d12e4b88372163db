// The console: which page is shown, what every page needs, and whether the server is there.

import { LostError, connection, get } from "./api.js";
import { h, setText } from "./dom.js";
import { History, SAMPLE_MS } from "./history.js";
import { lineList } from "./lines.js";
import { modelPage } from "./model.js";
import { problemLine, watchConnection } from "./notices.js";
import { overview } from "./overview.js";
import { every } from "./polling.js";

const main = document.getElementById("main");
const history = new History();
const listeners = new Set();
let about = null;
let page = null;
let errors = { count: 0, last: 0 };

function onSample(listener) {
  listeners.add(listener);
  listener();
  return () => listeners.delete(listener);
}

function simplePage(title, intro, path, options) {
  const problem = problemLine();
  const list = lineList(path, { ...options, onProblem: problem.tell });
  const element = h("div", {}, h("h1", { tabindex: "-1" }, title), h("p", { class: "muted" }, intro), problem.element, h("div", { class: "card" }, list.element));
  return { element, title, end: list.end };
}

const errorsPage = () => simplePage("Errors", "The last errors of the server and its models, newest first, with their tracebacks.",
  "console/errors", { empty: "There were none.", isError: true });
const logPage = () => simplePage("Log", "The last lines that are about no single model, newest first. Lines of a model are on its page.",
  "console/lines", { empty: "The server has said nothing lately." });

function route() {
  const [, first = "", second = "", third = ""] = location.hash.split("/");
  if (first === "models" && second) return ["models", () => modelPage(decodeURIComponent(second), context(), third || undefined)];
  if (first === "errors") return ["errors", errorsPage];
  if (first === "log") return ["log", logPage];
  return ["overview", () => overview(context())];
}

function context() {
  return { about, history, onSample };
}

function show({ focus = true } = {}) {
  if (about === null) return;
  page?.end();
  const [name, make] = route();
  page = make();
  for (const link of document.querySelectorAll("nav [data-route]")) {
    const isCurrent = link.dataset.route === name || (name === "models" && link.dataset.route === "overview");
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${page.title} – pytriton-lite`;
  main.replaceChildren(page.element);
  if (focus) {
    scrollTo(0, 0);
    page.element.querySelector("h1")?.focus({ preventScroll: true });
  }
}

function describeServer() {
  const state = history.latest?.state ?? "";
  const isReady = history.latest?.is_ready;
  const server = document.getElementById("server");
  const word = state === "READY" ? (isReady ? "ready" : "not ready") : state.toLowerCase();
  const kind = state === "READY" && isReady ? "ready" : state === "LOADING" ? "loading" : "unavailable";
  server.replaceChildren(
    word ? h("span", { class: `badge ${kind}` }, word) : "",
    h("span", { class: "muted" }, `${about?.version ?? ""}${about?.build === "compiled" ? " (compiled)" : ""}`));
}

async function sample() {
  try {
    history.add(await get("console/statistics"));
  } catch {
    return; // Whoever is needed is asked for above the page: the server itself, or a header that it wants.
  }
  describeServer();
  for (const listener of listeners) listener();
}

async function countErrors() {
  try {
    const { lines } = await get(`console/errors?after=${errors.last}`);
    errors.count += lines.length;
    errors.last = lines.at(-1)?.number ?? errors.last;
    const shown = document.getElementById("error-count");
    shown.hidden = errors.count === 0;
    setText(shown, String(errors.count));
  } catch {
    // The page of errors says why.
  }
}

/** Asks what the server is, and shows the page; the one that is shown stays where nothing has changed but the process. */
async function begin({ isAgain = false } = {}) {
  const before = JSON.stringify({ ...about, pid: 0 });
  try {
    about = await get("console/about");
  } catch (error) {
    if (error instanceof LostError) return;
    about ??= { mode: "none", version: "", build: "", grpc_port: null };
  }
  describeServer();
  if (!isAgain || page === null || JSON.stringify({ ...about, pid: 0 }) !== before) show({ focus: false });
}

watchConnection(async () => {
  await begin();
  sampling.again();
});
connection.addEventListener("back", () => {
  history.clear();
  errors = { count: 0, last: 0 };
  begin({ isAgain: true });
});
addEventListener("hashchange", () => show());
await begin();
const sampling = every(SAMPLE_MS, sample);
every(10_000, countErrors);
