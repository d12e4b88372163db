// The description of the API: every route of /openapi.json, with its parameters, bodies, answers, and a way to try it.

import { LostError, address, connection, errorOf, get, send } from "./api.js";
import { h, newId, setText } from "./dom.js";
import { bytes, milliseconds } from "./format.js";
import { watchConnection } from "./notices.js";
import { fromJson, toJson } from "./tensors.js";

const FIRST = "served models";
const MOST_SHOWN = 50_000;

let document_ = null;

/** *text*, in which backticks mark code. */
function marked(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
}

function resolve(schema) {
  const name = schema?.$ref?.split("/").at(-1);
  return name ? document_.components.schemas[name] : schema ?? {};
}

function nameOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.oneOf ?? schema.anyOf) return (schema.oneOf ?? schema.anyOf).map(nameOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  const type = [schema.type ?? "anything"].flat().join(" or ");
  return type === "array" ? `array of ${nameOf(schema.items ?? {})}` : type;
}

function properties(schema, depth = 0) {
  const found = resolve(schema);
  if (found.type === "array" && depth < 4) return properties(found.items, depth);
  const members = Object.entries(found.properties ?? {});
  if (!members.length || depth > 4) return null;
  return h("ul", { class: "schema" }, members.map(([name, one]) => h("li", {},
    h("code", {}, name), " ", h("span", { class: "muted" }, `${nameOf(one)}${found.required?.includes(name) ? "" : ", optional"}`),
    one.description ? [" – ", marked(one.description)] : null, properties(one, depth + 1))));
}

function bodyOf(operation) {
  const content = operation.requestBody?.content;
  if (!content) return null;
  return Object.entries(content).map(([type, one]) => ({ type, schema: one.schema, example: one.example }));
}

function operationElement(path, method, operation) {
  const content = h("div");
  let isBuilt = false;
  const element = h("details", {
    class: "operation", "data-path": path, "data-method": method, ontoggle: () => {
      if (!element.open || isBuilt) return;
      isBuilt = true;
      content.append(...describe(path, method, operation).flat(Infinity).filter(Boolean));
    },
  }, h("summary", {}, h("span", { class: `method ${method}` }, method.toUpperCase()), h("span", { class: "path" }, decodeURI(path)), h("span", { class: "muted" }, operation.summary)), content);
  return element;
}

function describe(path, method, operation) {
  const fields = (operation.parameters ?? []).map((parameter) => ({ parameter, input: h("input", {
    id: newId("parameter"), value: parameter.in === "path" ? String(parameter.example ?? "") : "", autocomplete: "off", spellcheck: "false",
    placeholder: parameter.schema?.enum?.join(" or ") ?? "",
  }) }));
  const bodies = bodyOf(operation);
  const json = bodies?.find((body) => body.type === "application/json");
  const example = json?.example === undefined ? "" : toJson(json.example);
  const textarea = json ? h("textarea", {
    id: newId("body"), rows: Math.min(24, Math.max(3, example.split("\n").length)), spellcheck: "false", value: example,
  }) : null;
  const status = h("p", { class: "status", role: "status" });
  const answer = h("pre", { tabindex: "0", hidden: true, class: "tried" });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); attempt(); }, "aria-label": `Try ${method.toUpperCase()} ${path}` },
    fields.length ? h("div", { class: "fields" }, fields.map(({ parameter, input }) =>
      h("div", {}, h("label", { for: input.id }, `${parameter.name}, ${parameter.in}${parameter.required ? "" : ", optional"}`), input,
        parameter.description ? h("p", { class: "muted" }, marked(parameter.description)) : null))) : null,
    textarea ? [h("label", { for: textarea.id }, "Body"), textarea] : null,
    h("p", {}, h("button", { type: "submit", class: "primary" }, "Send")), status, answer);

  async function attempt() {
    let filled = path;
    const query = new URLSearchParams();
    const headers = {};
    for (const { parameter, input } of fields) {
      if (parameter.in === "path") filled = filled.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value && parameter.in === "query") query.set(parameter.name, input.value);
      else if (input.value) headers[parameter.name] = input.value;
    }
    const options = { method: method.toUpperCase(), headers };
    if (textarea) {
      options.body = textarea.value;
      headers["content-type"] = "application/json";
    }
    setText(status, "Waiting for the answer …");
    const began = performance.now();
    try {
      const response = await send(`${filled.slice(1)}${query.size ? `?${query}` : ""}`, options);
      if (response.status === 403) await errorOf(response.clone());
      const text = await response.text();
      setText(status, `${response.status} ${response.statusText}, ${milliseconds(performance.now() - began)}, ${bytes(text.length)}`);
      answer.hidden = false;
      setText(answer, pretty(text));
    } catch (error) {
      setText(status, error.message);
    }
  }

  return [
    operation.description ? h("p", {}, operation.description) : null,
    form,
    bodies?.map((body) => [
      h("h3", {}, "Body ", h("span", { class: "muted" }, body.type)), properties(body.schema)]),
    operation.requestBody?.description ? h("p", { class: "muted" }, marked(operation.requestBody.description)) : null,
    h("h3", {}, "Answers"),
    h("table", { class: "plain" }, h("caption", { class: "visually-hidden" }, "Answers by status"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Status"), h("th", { scope: "col" }, "When"), h("th", { scope: "col" }, "Body"))),
      h("tbody", {}, Object.entries(operation.responses).sort(([one], [other]) => one.localeCompare(other)).map(([code, response]) =>
        h("tr", {}, h("th", { scope: "row" }, code), h("td", {}, marked(response.description)),
          h("td", {}, Object.entries(response.content ?? {}).map(([type, one]) => h("div", {}, `${type}${one.schema ? `: ${nameOf(one.schema)}` : ""}`))))))),
    schemasOf(operation),
  ];
}

function schemasOf(operation) {
  const shown = properties(operation.responses["200"]?.content?.["application/json"]?.schema);
  return shown ? h("details", {}, h("summary", {}, "Members of the answer"), shown) : null;
}

function pretty(text) {
  let shown = text;
  try {
    shown = JSON.stringify(fromJson(text), null, 2);
  } catch {
    // A stream, say.
  }
  return shown.length > MOST_SHOWN ? `${shown.slice(0, MOST_SHOWN)}… (${shown.length - MOST_SHOWN} more characters)` : shown || "(empty)";
}

async function begin() {
  const main = document.getElementById("main");
  try {
    document_ = await get("openapi.json");
  } catch (error) {
    if (!(error instanceof LostError)) main.replaceChildren(h("h1", {}, "API"), h("p", { class: "error", role: "alert" }, error.message));
    return;
  }
  const groups = new Map([[FIRST, []]]);
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operationElement(path, method, operation));
    }
  }
  if (!groups.get(FIRST).length) groups.set(FIRST, [h("p", { class: "muted" }, "No model is served now.")]);
  const word = (tag) => tag[0].toUpperCase() + tag.slice(1);
  const filter = h("input", { type: "search", placeholder: "Find a route …", "aria-label": "Find a route", oninput: () => {
    for (const one of main.querySelectorAll(".operation")) one.hidden = !one.querySelector("summary").textContent.toLowerCase().includes(filter.value.toLowerCase());
  } });
  main.replaceChildren(
    h("h1", {}, "API"),
    h("p", {}, `${document_.info.description} Version ${document_.info.version}. The document behind this page: `, h("a", { href: address("openapi.json").href }, "openapi.json"), "."),
    h("div", { class: "filters" }, filter),
    h("ul", { class: "toc" }, [...groups.keys()].map((tag) => h("li", {}, h("a", { href: `#${tag.replaceAll(" ", "-")}` }, word(tag))))),
    ...[...groups].map(([tag, elements]) => h("section", { "aria-labelledby": tag.replaceAll(" ", "-") }, h("h2", { id: tag.replaceAll(" ", "-") }, word(tag)), elements)));
}

watchConnection(begin);
connection.addEventListener("back", begin);
await begin();
