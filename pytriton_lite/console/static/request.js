// The form of a model: its inputs, what goes with them, the answer, and the same request as code.

import { LostError, ServerError } from "./api.js";
import { h, newId, put, setText, tabs } from "./dom.js";
import { generate, generateStream, infer } from "./exchange.js";
import { bytes, count, joinedTexts, milliseconds } from "./format.js";
import { picture } from "./images.js";
import { inputControls } from "./inputs.js";
import { curl, pythonGrpc, pythonHttp } from "./snippets.js";
import { fromJson, nested, toJson } from "./tensors.js";

const MOST_SHOWN = 200;
const MOST_EVENTS = 1000;
const MOST_CHOICES = 5;
const CODE_PAUSE_MS = 150;
const WHOLE_SEQUENCE = { sequence_id: 1, sequence_start: true, sequence_end: true };

/** The form of the model that *metadata* and *config* describe. *about* is the server's document of that name. */
export function requestForm({ metadata, config, about }) {
  const isDecoupled = Boolean(config.model_transaction_policy?.decoupled);
  const optional = new Set((config.input ?? []).filter((input) => input.optional).map((input) => input.name));
  const sequence = config.sequence_batching && !config.sequence_batching.iterative_sequence;
  const id = newId("form");
  let codeTimer = 0;
  let running = null;

  const controls = metadata.inputs.map((tensor) =>
    inputControls(tensor, { batches: config.max_batch_size > 0, isOptional: optional.has(tensor.name), onChange: codeSoon }));
  const version = h("select", { id: `${id}-version`, onchange: codeSoon },
    h("option", { value: "" }, "newest"), metadata.versions.map((one) => h("option", { value: one }, one)));
  const route = h("select", { id: `${id}-route`, onchange: codeSoon },
    ["infer", "generate", "generate_stream"].map((one) =>
      h("option", { value: one, selected: one === (isDecoupled ? "generate_stream" : "infer") }, one)));
  const requestId = h("input", { id: `${id}-id`, autocomplete: "off", spellcheck: "false", oninput: codeSoon });
  const parameters = h("textarea", {
    id: `${id}-parameters`, rows: 2, spellcheck: "false", placeholder: "{}", value: sequence ? JSON.stringify(WHOLE_SEQUENCE) : "", oninput: codeSoon,
  });
  const button = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Cancel");
  const status = h("p", { class: "status", role: "status" });
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const answer = h("div", { class: "answer" });

  const field = (label, control) => h("div", { class: "field" }, h("label", { for: control.id }, label), control);
  const form = h("form", { class: "card request", novalidate: true, onsubmit: onSubmit, "aria-label": `Request to ${metadata.name}` },
    h("h2", {}, "Request"),
    controls.length ? controls.map((control) => control.element) : h("p", { class: "muted" }, "This model takes no inputs."),
    h("details", { open: Boolean(sequence) }, h("summary", {}, "Version, route, id and parameters"),
      h("div", { class: "fields" }, field("Version", version), field("Route", route), field("Request id", requestId)),
      field("Parameters, a JSON object", parameters)),
    h("p", { class: "buttons" }, button, stop), status, problem);
  const { element: code, draw: drawCode } = codeOf();
  // The answer stands behind the form, also for those who hear the page or see it in one column.
  const element = h("div", { class: "exchange" }, form, h("section", { class: "card answers", "aria-label": "Answer" }, h("h2", {}, "Answer"), answer), code);
  answer.append(h("p", { class: "muted" }, "Nothing was sent yet."));

  function readParameters() {
    if (!parameters.value.trim()) return {};
    const found = fromJson(parameters.value);
    if (found?.constructor !== Object) throw new Error("no object");
    return found;
  }

  function head() {
    return { model: metadata.name, version: version.value, id: requestId.value, outputs: metadata.outputs };
  }

  async function read() {
    let given;
    try {
      given = readParameters();
    } catch (error) {
      throw new Error(`Parameters: a JSON object was expected (${error.message})`);
    }
    const inputs = [];
    for (const control of controls) if (control.isSent()) inputs.push(await control.read());
    return { ...head(), parameters: given, inputs };
  }

  function codeSoon() {
    clearTimeout(codeTimer);
    codeTimer = setTimeout(() => drawCode(), CODE_PAUSE_MS);
  }

  function codeOf() {
    const views = { curl: h("pre", { tabindex: "0" }), http: h("pre", { tabindex: "0" }), grpc: h("pre", { tabindex: "0" }) };
    let shown = "curl";
    const copied = h("span", { class: "muted", role: "status" });
    const copy = h("button", {
      type: "button", class: "small", onclick: async () => {
        try {
          await navigator.clipboard.writeText(views[shown].textContent);
          setText(copied, "Copied");
        } catch {
          getSelection().selectAllChildren(views[shown]);
          setText(copied, "Selected: press Ctrl+C");
        }
        setTimeout(() => setText(copied, ""), 2000);
      },
    }, "Copy");
    const list = [
      { name: "curl", label: "curl", panel: views.curl },
      { name: "http", label: "Python, HTTP", panel: views.http },
      { name: "grpc", label: "Python, gRPC", panel: views.grpc },
    ];
    const { element: shownTabs } = tabs("The request as code", list, { onChange: (name) => { shown = name; } });

    function draw() {
      let given = {};
      try {
        given = readParameters();
      } catch {
        // The form says so when it is sent.
      }
      const request = { ...head(), parameters: given, inputs: controls.filter((control) => control.isSent()).map((control) => control.describe()) };
      setText(views.curl, curl(request, route.value));
      setText(views.http, pythonHttp(request, route.value));
      setText(views.grpc, pythonGrpc(request, about, isDecoupled));
    }

    return { element: h("section", { class: "card code", "aria-label": "The request as code" }, h("div", { class: "head" }, h("h2", {}, "As code"), copied, copy), shownTabs), draw };
  }

  async function onSubmit(event) {
    event.preventDefault();
    if (running) return;
    running = new AbortController();
    button.disabled = true;
    stop.hidden = false;
    problem.hidden = true;
    setText(status, "Waiting for the answer …");
    const began = performance.now();
    const took = () => milliseconds(performance.now() - began);
    try {
      const request = await read();
      if (route.value === "generate_stream") await stream(request, began);
      else if (route.value === "generate") show(await generate(request, running.signal), membersOf, took());
      else show(await infer(request, running.signal), tensorsOf, took());
    } catch (error) {
      setText(status, error.name === "AbortError" ? `Cancelled after ${took()}` : "");
      if (error.name !== "AbortError") tell(error);
    } finally {
      running = null;
      button.disabled = false;
      stop.hidden = true;
    }
  }

  function tell(error) {
    problem.hidden = false;
    const where = error instanceof ServerError ? `The server answered ${error.status}: ` : "";
    setText(problem, `${where}${error.message}`);
    if (error instanceof LostError) setText(status, "");
  }

  function show(result, parts, took) {
    setText(status, `Answered in ${took}, ${bytes(result.bytes)}`);
    put(answer, parts(result), h("details", {}, h("summary", {}, "Document"),
      h("pre", { tabindex: "0" }, cut(JSON.stringify(result.document, null, 2)))));
  }

  async function stream(request, began) {
    const joined = h("p", { class: "joined", hidden: true });
    const rows = h("ol", { class: "events", "aria-label": "Responses" });
    answer.replaceChildren(joined, rows);
    const texts = joinedTexts();
    let events = 0;
    let errors = 0;
    let first = null;
    const onEvent = (members) => {
      const at = performance.now() - began;
      first ??= at;
      events += 1;
      if (members.error !== undefined) errors += 1;
      if (events <= MOST_EVENTS) rows.append(eventRow(members, at));
      for (const output of metadata.outputs) {
        const value = members[output.name];
        if (output.datatype === "BYTES" && typeof value === "string") texts.add(output.name, value);
      }
      joined.hidden = !texts.longest();
      setText(joined, texts.longest());
      setText(status, `${count(events, "response")} so far, the first after ${milliseconds(first)}`);
    };
    await generateStream(request, onEvent, running.signal);
    const failed = errors ? `, ${count(errors, "error")} among them` : "";
    const began1 = first === null ? "" : `, the first after ${milliseconds(first)}`;
    setText(status, `The stream has ended: ${count(events, "response")}${failed}${began1}, all in ${milliseconds(performance.now() - began)}`);
    if (!events) answer.replaceChildren(h("p", { class: "muted" }, "The model sent no response."));
  }

  function eventRow(members, at) {
    const time = h("span", { class: "muted" }, milliseconds(at));
    if (members.error !== undefined) return h("li", {}, time, " ", h("span", { class: "error" }, members.error));
    const { model_name: name, model_version: number, ...rest } = members;
    return h("li", { title: `${name}, version ${number}` }, time, " ", Object.entries(rest).map(([key, value]) =>
      h("span", { class: "member" }, h("code", {}, key), " ", cut(typeof value === "string" ? value : toJson(value)))));
  }

  function membersOf({ document }) {
    const { model_name: name, model_version: number, ...rest } = document;
    return [h("p", { class: "muted" }, `${name}, version ${number}`), h("dl", {}, Object.entries(rest).map(([key, value]) =>
      [h("dt", {}, h("code", {}, key)), h("dd", {}, h("pre", { tabindex: "0" }, cut(typeof value === "string" ? value : toJson(value))))]))];
  }

  function tensorsOf({ document, outputs }) {
    const parameters = Object.entries(document.parameters ?? {});
    return [
      h("p", { class: "muted" }, `${document.model_name}, version ${document.model_version}${document.id ? `, id ${document.id}` : ""}`),
      outputs.map((output) => h("div", { class: "output", "data-output": output.name },
        h("h3", {}, h("code", {}, output.name), " ", h("span", { class: "muted" }, `${output.datatype} [${output.shape.join(", ")}]`)),
        likeliest(output), valuesOf(output))),
      parameters.length ? h("p", {}, "Parameters: ", h("code", {}, JSON.stringify(document.parameters))) : null,
    ];
  }

  /** The elements as text, behind a picture of them where they are one. */
  function valuesOf(output) {
    const text = h("pre", { tabindex: "0" }, nested(output.elements, output.shape, MOST_SHOWN));
    const canvas = picture(output.datatype, output.shape, output.elements);
    if (!canvas) return text;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${output.name} as a picture`);
    return [h("div", { class: "preview" }, canvas), h("details", {}, h("summary", {}, "Values"), text)];
  }

  /** The greatest elements of what may be scores of classes. */
  function likeliest(output) {
    const classes = output.shape.at(-1) ?? 0;
    if (!output.datatype.startsWith("FP") || classes < 10 || output.elements.length !== classes) return null;
    const top = output.elements.map((value, at) => [at, value]).sort(([, one], [, other]) => other - one).slice(0, MOST_CHOICES);
    return h("p", { class: "muted" }, `Greatest: ${top.map(([at, value]) => `[${at}] ${Number(value).toPrecision(4)}`).join(", ")}`);
  }

  drawCode();
  return element;
}

function cut(text) {
  return text.length > 20_000 ? `${text.slice(0, 20_000)}… (${text.length - 20_000} more characters)` : text;
}
