// One request to a model and its answer: infer, generate, and generate_stream with its events as they come.

import { LostError, errorOf, lose, modelPath, send } from "./api.js";
import { fromBytes, fromJson, hasJson, toBytes, toJson } from "./tensors.js";

const HEADER_LENGTH = "inference-header-content-length";

/** The document of an infer request, and the bytes behind it. *request* has model, version, id, parameters, inputs, outputs. */
export function inferBody(request) {
  const document = {};
  if (request.id) document.id = request.id;
  if (Object.keys(request.parameters).length) document.parameters = request.parameters;
  const parts = [];
  document.inputs = request.inputs.map((input) => {
    const head = { name: input.name, datatype: input.datatype, shape: input.shape };
    const isLong = input.source.kind === "random" && input.elements.length > 4096;
    if (!input.isBinary && !isLong && hasJson(input.datatype)) return { ...head, data: input.elements };
    const data = toBytes(input.datatype, Array.isArray(input.elements) ? input.elements : [...input.elements]);
    parts.push(data);
    return { ...head, parameters: { binary_data_size: data.length } };
  });
  const half = request.outputs.filter((output) => !hasJson(output.datatype));
  if (half.length) {
    document.outputs = request.outputs.map((output) =>
      hasJson(output.datatype) ? { name: output.name } : { name: output.name, parameters: { binary_data: true } });
  }
  return { text: toJson(document), parts };
}

/** The document of a generate request. */
export function generateBody(request) {
  const members = {};
  if (request.id) members.id = request.id;
  for (const input of request.inputs) {
    const elements = Array.from(input.elements, (element) =>
      element instanceof Uint8Array ? new TextDecoder().decode(element) : element);
    members[input.name] = elements.length === 1 ? elements[0] : elements;
  }
  return toJson({ ...members, ...(Object.keys(request.parameters).length ? { parameters: request.parameters } : {}) });
}

function outputsOf(text, tail) {
  const document = fromJson(text);
  let at = 0;
  const outputs = document.outputs.map((output) => {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) return { ...output, elements: (output.data ?? []).flat(Infinity) };
    at += size;
    return { ...output, elements: fromBytes(output.datatype, tail.slice(at - size, at)) };
  });
  return { document, outputs };
}

/** Infers; the answer, and its outputs with their elements. Raises ServerError, LostError, AbortError. */
export async function infer(request, signal) {
  const { text, parts } = inferBody(request);
  const head = new TextEncoder().encode(text);
  const headers = { "content-type": parts.length ? "application/octet-stream" : "application/json" };
  if (parts.length) headers[HEADER_LENGTH] = String(head.length);
  const response = await send(`${modelPath(request.model, request.version)}/infer`, {
    method: "POST", body: new Blob([head, ...parts]), headers, signal,
  });
  if (!response.ok) throw await errorOf(response);
  const body = new Uint8Array(await response.arrayBuffer());
  const size = Number(response.headers.get(HEADER_LENGTH) ?? body.length);
  const answer = new TextDecoder().decode(body.subarray(0, size));
  return { status: response.status, bytes: body.length, ...outputsOf(answer, body.subarray(size)) };
}

/** Generates; the answer's members. Raises as `infer`. */
export async function generate(request, signal) {
  const response = await send(`${modelPath(request.model, request.version)}/generate`, {
    method: "POST", body: generateBody(request), headers: { "content-type": "application/json" }, signal,
  });
  if (!response.ok) throw await errorOf(response);
  const text = await response.text();
  return { status: response.status, bytes: text.length, document: fromJson(text) };
}

/** The next piece of a stream. Raises LostError where the server goes in the middle of it, AbortError where *signal* was used. */
async function readOn(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw error;
    lose();
    throw new LostError("The server was lost in the middle of the stream.");
  }
}

/** Generates a stream; *onEvent* is given the members of each event as it comes. Raises as `infer`. */
export async function generateStream(request, onEvent, signal) {
  const response = await send(`${modelPath(request.model, request.version)}/generate_stream`, {
    method: "POST", body: generateBody(request), headers: { "content-type": "application/json" }, signal,
  });
  const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
  if (!isStream) throw await errorOf(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await readOn(reader, signal);
    if (done) break;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) onEvent(fromJson(event.slice(6)));
    }
  }
  return { status: response.status };
}
