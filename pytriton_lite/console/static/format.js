// Numbers and times for people.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A number with three digits that count. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return NUMBER.format(value);
  return size < 0.001 ? (size === 0 ? "0" : value.toExponential(1)) : String(Number(value.toPrecision(3)));
}

/** Milliseconds. */
export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`;
}

/** Bytes. */
export function bytes(count) {
  if (count < 1024) return `${count} B`;
  return count < 1 << 20 ? `${number(count / 1024)} KiB` : `${number(count / (1 << 20))} MiB`;
}

/** The time of day of a moment, in milliseconds since the epoch. */
export function timeOfDay(ms) {
  const date = new Date(ms);
  const two = (part) => String(part).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** "1 model", "2 models". */
export function count(amount, noun) {
  return `${NUMBER.format(amount)} ${noun}${amount === 1 ? "" : "s"}`;
}

/** The texts that come in pieces, by name: `add` a piece, and `longest` of them. Words without spaces of their own are given some. */
export function joinedTexts() {
  const texts = new Map();
  return {
    add(name, piece) {
      const text = texts.get(name) ?? { joined: "", pieces: [], hasSpaces: false };
      texts.set(name, text);
      if (!text.hasSpaces && /^\s|\s$/.test(piece)) {
        text.hasSpaces = true;
        text.joined = text.pieces.join("");
        text.pieces = [];
      }
      if (!text.hasSpaces) text.pieces.push(piece);
      text.joined += text.joined && piece && !text.hasSpaces ? ` ${piece}` : piece;
    },
    longest: () => [...texts.values()].reduce((longest, text) => (text.joined.length > longest.length ? text.joined : longest), ""),
  };
}
