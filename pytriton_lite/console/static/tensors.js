// Tensors of a form: what a person typed, as JSON or as bytes, and bytes of an answer as numbers.

const SIZES = {
  BOOL: 1, UINT8: 1, INT8: 1, UINT16: 2, INT16: 2, FP16: 2, BF16: 2,
  UINT32: 4, INT32: 4, FP32: 4, UINT64: 8, INT64: 8, FP64: 8,
};
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;
const TEXT = new TextEncoder();

/** JSON that is written as it stands: a number of more digits than a double has, say. */
export class Raw {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  /** The nearest that JSON.stringify can write. */
  toJSON() {
    return this.text;
  }
}

/** JSON.stringify, with Raw. */
export function toJson(value, indent = "") {
  if (value instanceof Raw) return value.text;
  if (Array.isArray(value)) return `[${value.map((one) => toJson(one, indent)).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    const inner = `${indent}  `;
    const members = Object.entries(value).map(([name, one]) => `${inner}${JSON.stringify(name)}: ${toJson(one, inner)}`);
    return members.length ? `{\n${members.join(",\n")}\n${indent}}` : "{}";
  }
  return JSON.stringify(value);
}

const BESIDE_JSON = /"[^"\\]*(?:\\.[^"\\]*)*"|NaN|-?Infinity/g;
const MARK = "\0"; // in front of a text, which models hardly ever have

/**
 * JSON.parse, in which these become Raw: numbers that are not finite, which the server writes although JSON has none, and integers
 * that no double holds, where the browser can tell.
 */
export function fromJson(text) {
  const isBeside = /NaN|Infinity/.test(text);
  if (!isBeside && !/[^\d.]\d{16}/.test(text)) return JSON.parse(text);
  const marked = isBeside ? text.replace(BESIDE_JSON, (token) => (token.startsWith('"') ? token : `"\\u0000${token}"`)) : text;
  return JSON.parse(marked, (key, value, context) => {
    if (isBeside && typeof value === "string" && value.startsWith(MARK)) return new Raw(value.slice(1));
    return Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? new Raw(context.source) : value;
  });
}

export function isReal(datatype) {
  return datatype.startsWith("FP") || datatype === "BF16";
}

/** Whether a datatype can be in JSON: half-precision numbers have no form there. */
export function hasJson(datatype) {
  return datatype !== "FP16" && datatype !== "BF16";
}

export function elementCount(shape) {
  return shape.reduce((product, dim) => product * dim, 1);
}

/**
 * *shape* with numbers for what is variable, so that *count* elements fit: all of them along the innermost variable dimension,
 * as the server's own generate does. What does not fit is left to the server, which has the words for it.
 */
export function shapeFor(shape, count) {
  const variable = shape.map((dim, at) => (dim < 0 ? at : -1)).filter((at) => at >= 0);
  const found = shape.map((dim) => (dim < 0 ? 1 : dim));
  if (variable.length) {
    const rest = elementCount(found);
    found[variable.at(-1)] = rest ? Math.floor(count / rest) : count;
  }
  return found;
}

/** Numbers of a text: brackets, commas and blanks separate them. What is no number stays text, and the server says so. */
export function readNumbers(text, datatype) {
  const words = text.match(/[^\s,[\]]+/g) ?? [];
  return words.map((word) => {
    if (datatype === "BOOL") return /^(true|1)$/i.test(word) ? true : /^(false|0)$/i.test(word) ? false : word;
    return NUMBER.test(word) ? new Raw(word) : word;
  });
}

/** Random elements: reals from 0 to 1, small integers, truths. */
export function randomElements(datatype, count) {
  return Array.from({ length: count }, () => {
    if (datatype === "BOOL") return Math.random() < 0.5;
    if (datatype === "BYTES") return Math.random().toString(36).slice(2, 8);
    return isReal(datatype) ? Math.fround(Math.random()) : Math.floor(Math.random() * 10);
  });
}

function halfBits(value) {
  const bits = new Uint32Array(new Float32Array([value]).buffer)[0];
  const sign = (bits >>> 16) & 0x8000;
  const exponent = (bits >>> 23) & 0xff;
  const mantissa = bits & 0x7fffff;
  if (exponent === 255) return sign | 0x7c00 | (mantissa ? 0x200 : 0);
  const small = exponent - 112;
  if (small >= 31) return sign | 0x7c00;
  if (small < -10) return sign;
  const shift = small > 0 ? 13 : 14 - small;
  const whole = small > 0 ? mantissa : mantissa | 0x800000;
  const half = (small > 0 ? small << 10 : 0) | (whole >>> shift);
  const rest = whole & ((1 << shift) - 1);
  const middle = 1 << (shift - 1);
  return sign | (half + (rest > middle || (rest === middle && half & 1) ? 1 : 0));
}

function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 0x1f;
  const mantissa = bits & 0x3ff;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return exponent ? sign * (1 + mantissa / 1024) * 2 ** (exponent - 15) : sign * mantissa * 2 ** -24;
}

function brainBits(value) {
  const bits = new Uint32Array(new Float32Array([value]).buffer)[0];
  if (Number.isNaN(Number(value))) return 0x7fc0;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

function fromBrain(bits) {
  return new Float32Array(new Uint32Array([bits << 16]).buffer)[0];
}

function putter(datatype, view) {
  const big = (value) => {
    try {
      return BigInt(String(value));
    } catch {
      return BigInt(Math.trunc(Number(value) || 0));
    }
  };
  return {
    BOOL: (at, value) => view.setUint8(at, value ? 1 : 0),
    UINT8: (at, value) => view.setUint8(at, value),
    INT8: (at, value) => view.setInt8(at, value),
    UINT16: (at, value) => view.setUint16(at, value, true),
    INT16: (at, value) => view.setInt16(at, value, true),
    FP16: (at, value) => view.setUint16(at, halfBits(value), true),
    BF16: (at, value) => view.setUint16(at, brainBits(value), true),
    UINT32: (at, value) => view.setUint32(at, value, true),
    INT32: (at, value) => view.setInt32(at, value, true),
    FP32: (at, value) => view.setFloat32(at, value, true),
    UINT64: (at, value) => view.setBigUint64(at, BigInt.asUintN(64, big(value)), true),
    INT64: (at, value) => view.setBigInt64(at, BigInt.asIntN(64, big(value)), true),
    FP64: (at, value) => view.setFloat64(at, value, true),
  }[datatype];
}

/** Elements as the bytes of a binary tensor. Those of BYTES are texts or Uint8Arrays. */
export function toBytes(datatype, elements) {
  if (datatype === "BYTES") {
    const encoded = elements.map((element) => (element instanceof Uint8Array ? element : TEXT.encode(String(element))));
    const whole = new Uint8Array(encoded.reduce((sum, one) => sum + 4 + one.length, 0));
    let at = 0;
    for (const one of encoded) {
      new DataView(whole.buffer).setUint32(at, one.length, true);
      whole.set(one, at + 4);
      at += 4 + one.length;
    }
    return whole;
  }
  const size = SIZES[datatype];
  const view = new DataView(new ArrayBuffer(elements.length * size));
  const put = putter(datatype, view);
  elements.forEach((element, at) => put(at * size, element instanceof Raw && size < 8 ? Number(element.text) : element));
  return new Uint8Array(view.buffer);
}

/** The numbers in the bytes of a half-precision output. */
export function fromBytes(datatype, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const read = datatype === "BF16" ? fromBrain : fromHalf;
  return Array.from({ length: bytes.byteLength / 2 }, (_, at) => read(view.getUint16(at * 2, true)));
}

/** Flat elements as a nested text, cut after *most* of them. */
export function nested(elements, shape, most) {
  const shown = elements.slice(0, most);
  const write = (element) => (typeof element === "number" ? String(element) : toJson(element));
  let at = 0;
  function level(depth) {
    if (depth === shape.length) {
      at += 1;
      return write(shown[at - 1]);
    }
    const parts = [];
    for (let index = 0; index < shape[depth] && at < shown.length; index += 1) parts.push(level(depth + 1));
    const isInner = depth === shape.length - 1;
    return `[${parts.join(isInner ? ", " : `,\n${" ".repeat(depth + 1)}`)}]`;
  }
  if (!shown.length) return "[]";
  const text = level(0);
  return elements.length > most ? `${text}\n… and ${elements.length - most} more elements` : text;
}
