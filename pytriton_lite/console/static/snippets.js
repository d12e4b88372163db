// The request of a form as code that runs: curl, tritonclient over HTTP, tritonclient over gRPC.

import { address, headerNames, modelPath } from "./api.js";
import { generateBody, inferBody } from "./exchange.js";
import { Raw, hasJson, isReal } from "./tensors.js";

const NUMPY = {
  BOOL: "np.bool_", UINT8: "np.uint8", UINT16: "np.uint16", UINT32: "np.uint32", UINT64: "np.uint64",
  INT8: "np.int8", INT16: "np.int16", INT32: "np.int32", INT64: "np.int64",
  FP16: "np.float16", BF16: "np.float32", FP32: "np.float32", FP64: "np.float64", BYTES: "np.object_",
};
const WORDS = { sequence_id: "sequence_id", sequence_start: "sequence_start", sequence_end: "sequence_end", priority: "priority", timeout: "timeout" };

function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function python(value) {
  if (value instanceof Raw) return value.text;
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${python(name)}: ${python(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function headersOf() {
  return Object.fromEntries(headerNames().map((name) => [name, "…"]));
}

/** Whether any input comes from a file: JSON would be long, or impossible. */
function fromFile(inputs) {
  return inputs.filter((input) => input.source.kind === "file" || input.source.kind === "image");
}

/** The bytes of the one input are the body: what curl can send of a file. */
function isRaw(request) {
  const [input] = request.inputs;
  return request.inputs.length === 1 && input.source.kind === "file" && !request.id && !Object.keys(request.parameters).length;
}

function withRandom(inputs) {
  return inputs.map((input) => {
    if (input.source.kind !== "random") return input;
    const count = input.shape.reduce((product, dim) => product * dim, 1);
    const one = input.datatype === "BYTES" ? "text" : input.datatype === "BOOL" ? true : new Raw(isReal(input.datatype) ? "0.5" : "1");
    return { ...input, elements: Array.from({ length: Math.min(count, 4096) }, () => one), isShort: count > 4096 };
  });
}

/** A command for curl. */
export function curl(request, route) {
  const url = address(`${modelPath(request.model, request.version)}/${route}`).href;
  const headers = headerNames().map((name) => ` \\\n  -H ${shell(`${name}: …`)}`).join("");
  const flag = route === "generate_stream" ? "-sN" : "-s";
  if (route === "infer" && isRaw(request)) {
    const { file } = request.inputs[0].source;
    return `curl ${flag} ${shell(url)} \\\n  -H 'Inference-Header-Content-Length: 0'${headers} \\\n  --data-binary @${shell(file)} --output answer.bin`;
  }
  const inputs = withRandom(request.inputs);
  const files = fromFile(inputs);
  const reason = files.length ? `'${files[0].name}' comes from a file` : (inputs.find((input) => input.isShort) ? `'${inputs.find((input) => input.isShort).name}' is large` : "");
  const half = request.inputs.find((input) => !hasJson(input.datatype));
  if (reason || (half && route === "infer")) {
    return `# ${reason || `'${half.name}' is ${half.datatype}, which has no JSON form`}: the Python code sends it.`;
  }
  const plain = { ...request, inputs, outputs: [] };
  const body = route === "infer" ? inferBody(plain).text : generateBody(plain);
  return `curl ${flag} ${shell(url)} \\\n  -H 'Content-Type: application/json'${headers} \\\n  -d ${shell(body)}`;
}

function pixels(input) {
  const { file, layout, scale, width, height } = input.source;
  const mode = { 1: "L", 3: "RGB", 4: "RGBA" }[layout.channels];
  const lines = [
    `image = Image.open(${python(file)}).convert("${mode}").resize((${width}, ${height}))`,
    `pixels = np.asarray(image, np.float32).reshape(${height}, ${width}, ${layout.channels})`,
  ];
  if (scale === "unit") lines.push("pixels /= 255");
  if (scale === "signed") lines.push("pixels = pixels / 127.5 - 1");
  if (scale === "imagenet") lines.push("pixels = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]");
  if (layout.order === "CHW") lines.push("pixels = pixels.transpose(2, 0, 1)");
  return { lines, value: `pixels.astype(${NUMPY[input.datatype]}).reshape(${python(input.shape)})` };
}

/** Lines before the value, and the expression of the array. */
function arrayOf(input) {
  const type = NUMPY[input.datatype];
  const shape = python(input.shape);
  const { kind, file } = input.source;
  if (kind === "image") return pixels(input);
  if (kind === "file" && input.datatype === "BYTES") {
    return { lines: [`with open(${python(file)}, "rb") as file:`, "    contents = file.read()"], value: `np.array([contents], np.object_).reshape(${shape})` };
  }
  if (kind === "file") return { lines: [], value: `np.fromfile(${python(file)}, ${type}).reshape(${python(input.shape.map((dim, at, all) => (at === all.length - 1 ? -1 : dim)))})` };
  if (kind === "random") {
    if (isReal(input.datatype)) return { lines: [], value: `np.random.default_rng().random(${shape}).astype(${type})` };
    if (input.datatype === "BYTES") return { lines: [], value: `np.full(${shape}, "text", np.object_)` };
    return { lines: [], value: `np.random.default_rng().integers(0, ${input.datatype === "BOOL" ? 2 : 10}, ${shape}).astype(${type})` };
  }
  return { lines: [], value: `np.array(${python(input.elements)}, ${type}).reshape(${shape})` };
}

function arguments_(request) {
  const found = [];
  if (request.version) found.push(`model_version=${python(request.version)}`);
  if (request.id) found.push(`request_id=${python(request.id)}`);
  const others = {};
  for (const [name, value] of Object.entries(request.parameters)) {
    if (WORDS[name]) found.push(`${name}=${python(value)}`);
    else others[name] = value;
  }
  if (Object.keys(others).length) found.push(`parameters=${python(others)}`);
  const headers = headersOf();
  if (Object.keys(headers).length) found.push(`headers=${python(headers)}`);
  return found;
}

function inputLines(request) {
  const lines = ["inputs = []"];
  for (const input of request.inputs) {
    const { lines: before, value } = arrayOf(input);
    lines.push(...before);
    lines.push(`inputs.append(client.InferInput(${python(input.name)}, ${python(input.shape)}, ${python(input.datatype)}))`);
    lines.push(`inputs[-1].set_data_from_numpy(${value})`);
  }
  return lines;
}

function imports(request, module) {
  const lines = ["import numpy as np", `import ${module} as client`];
  if (request.inputs.some((input) => input.source.kind === "image")) lines.push("from PIL import Image");
  return lines;
}

function overHttp(request) {
  const here = address("");
  const extra = here.protocol === "https:" ? ", ssl=True" : "";
  return [
    "# pip install 'tritonclient[http]'",
    ...imports(request, "tritonclient.http"),
    "",
    ...inputLines(request),
    "",
    `with client.InferenceServerClient(${python(here.host + here.pathname.replace(/\/$/, ""))}${extra}) as server:`,
    `    result = server.infer(${[python(request.model), "inputs", ...arguments_(request)].join(", ")})`,
    ...request.outputs.map((output) => `    print(${python(output.name)}, result.as_numpy(${python(output.name)}))`),
  ].join("\n");
}

function streamOverHttp(request, route) {
  const url = address(`${modelPath(request.model, request.version)}/${route}`).href;
  const headers = { "Content-Type": "application/json", ...headersOf() };
  const plain = { ...request, inputs: withRandom(request.inputs) };
  if (fromFile(plain.inputs).length) return "# generate takes JSON: the gRPC code sends the file.";
  const body = generateBody(plain);
  return [
    "# generate is plain HTTP: no package is needed",
    "import json",
    "import urllib.request",
    "",
    `body = json.loads(r'''${body.replaceAll("'''", "\\u0027\\u0027\\u0027")}''')`,
    `request = urllib.request.Request(${python(url)}, json.dumps(body).encode(), ${python(headers)})`,
    "with urllib.request.urlopen(request) as answer:",
    ...(route === "generate"
      ? ["    print(json.load(answer))"]
      : ["    for line in answer:", '        if line.startswith(b"data: "):', "            print(json.loads(line[6:]))"]),
  ].join("\n");
}

/** Python over HTTP: tritonclient for infer, the standard library for generate, which tritonclient does not know. */
export function pythonHttp(request, route) {
  return route === "infer" ? overHttp(request) : streamOverHttp(request, route);
}

/** Python over gRPC. *about* is the server's document of that name. */
export function pythonGrpc(request, about, isDecoupled) {
  if (!about?.grpc_port) return "# This server listens on no TCP port for gRPC.";
  const host = `${address("").hostname}:${about.grpc_port}`;
  const opening = `with client.InferenceServerClient(${python(host)}${about.grpc_tls ? ", ssl=True" : ""}) as server:`;
  const call = [python(request.model), "inputs", ...arguments_(request).filter((one) => !one.startsWith("headers="))];
  const head = ["# pip install 'tritonclient[grpc]'", ...(isDecoupled ? ["import queue", ""] : []), ...imports(request, "tritonclient.grpc"), "", ...inputLines(request), ""];
  if (!isDecoupled) {
    return [
      ...head, opening,
      `    result = server.infer(${call.join(", ")})`,
      ...request.outputs.map((output) => `    print(${python(output.name)}, result.as_numpy(${python(output.name)}))`),
    ].join("\n");
  }
  return [
    ...head,
    "answers = queue.Queue()",
    opening,
    "    server.start_stream(lambda result, error: answers.put(error or result))",
    `    server.async_stream_infer(${[...call, "enable_empty_final_response=True"].join(", ")})`,
    "    while True:",
    "        answer = answers.get()",
    "        if isinstance(answer, Exception):",
    "            raise answer",
    "        for output in answer.get_response().outputs:",
    "            print(output.name, answer.as_numpy(output.name))",
    '        if answer.get_response().parameters["triton_final_response"].bool_param:',
    "            break",
  ].join("\n");
}
