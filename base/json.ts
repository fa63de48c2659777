/**
 * Parses JSON from senders that are not trusted: guests, hypervisors, registries, token servers and callers of the HTTP API.
 *
 * JSON.parse cannot be interrupted, and its cost depends on the structure more than on the length. One MiB of `[],[],` or of objects with
 * different keys blocks the event loop for 0.1 to 0.2 s, and becomes tens of megabytes of heap. One MiB in one string takes 3 ms at most.
 * Therefore the bytes are counted while they arrive, and JSON.parse gets only text whose cost is known. Counting takes about 1 ns per byte.
 *
 * To parse bytes or text that are in memory, use {@link parseJson}. A caller that reads a stream gives each piece to
 * {@link JsonCheck.push}, and then all bytes to {@link JsonCheck.parse}:
 *
 * ```ts
 * const check = new JsonCheck({ bytes: 1024 * 1024, items: 16_384 });
 * for await (const chunk of request) {
 *   check.push(chunk); // throws JsonError before the rest arrives
 *   collector.add(chunk);
 * }
 * return check.parse(collector.take());
 * ```
 *
 * The caller chooses `items` by its longest honest text. An item costs 0.1 µs and 30 bytes of heap in most texts, and 1.6 µs and 180 bytes
 * in the most expensive ones. So 16,384 items block the event loop for at most 26 ms.
 */
const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const BYTE_ORDER_MARK = '\uFEFF';
/** The bit in which `[` differs from `{`, and `]` from `}`. No other byte that differs in this bit is a bracket. */
const BRACE_BIT = 0x20;
const OPEN = 0x7b;
const CLOSE = 0x7d;
/**
 * Largest number of brackets that are open at the same time. No format that Berth reads needs more than 12. The limit protects functions
 * that visit a document recursively.
 */
export const JSON_DEPTH = 32;
/**
 * Number of bytes of a string that are compared one by one. Most strings are shorter. The end of a longer string is found by `indexOf`,
 * which takes 50 ns for each call, but little time for each byte.
 */
const SHORT_STRING_BYTES = 64;

/** Limits of a JSON text. */
export interface JsonLimits {
  /** Largest length in bytes. */
  readonly bytes: number;
  /**
   * Largest number of opening brackets and commas outside of strings. The number of values and the number of keys are each at most one
   * more than this number.
   */
  readonly items: number;
}

/** Error for JSON that is not parsed. The message can follow the name of the document, and repeats none of its text. */
export class JsonError extends Error {
  override readonly name = 'JsonError';
  /** Exceeded limit, or `syntax` if the text is not JSON. */
  readonly fault: 'bytes' | 'items' | 'depth' | 'syntax';

  constructor(fault: JsonError['fault'], message: string) {
    super(message);
    this.fault = fault;
  }
}

/** Counts the bytes and the structure of one JSON text that arrives in pieces of any size. It does not keep the pieces. */
export class JsonCheck {
  readonly #limits: JsonLimits;
  #bytes = 0;
  #items = 0;
  #depth = 0;
  #deepest = 0;
  #inString = false;
  /** Whether the last byte of the last piece was a backslash in a string, so that the next byte does not end the string. */
  #escaped = false;

  constructor(limits: JsonLimits) {
    this.#limits = limits;
  }

  /** Counts the next piece of the text. @throws JsonError when the text exceeds a limit. */
  push(piece: Buffer): void {
    this.#bytes += piece.length;
    if (this.#bytes > this.#limits.bytes) {
      throw new JsonError('bytes', `is larger than ${this.#limits.bytes} bytes`);
    }
    let items = this.#items;
    let depth = this.#depth;
    let at = this.#inString ? this.#endOfString(piece, 0) : 0;
    while (at < piece.length) {
      const byte = piece[at] ?? 0;
      at += 1;
      if (byte === QUOTE) {
        at = this.#endOfString(piece, at);
      } else if (byte === COMMA) {
        items += 1;
      } else if ((byte | BRACE_BIT) === OPEN) {
        items += 1;
        depth += 1;
        this.#deepest = Math.max(this.#deepest, depth);
      } else if ((byte | BRACE_BIT) === CLOSE) {
        depth -= 1;
      }
    }
    this.#items = items;
    this.#depth = depth;
    this.#requireFewItems();
  }

  /**
   * Parses the text. `bytes` are the bytes of all pieces together. Bytes that are not UTF-8 become U+FFFD, the replacement character.
   *
   * @throws JsonError when the text is not JSON. @throws RangeError when `bytes` has not the length of all pieces.
   */
  parse(bytes: Buffer): unknown {
    if (bytes.length !== this.#bytes) {
      throw new RangeError(`${this.#bytes} bytes were checked, but ${bytes.length} bytes were to be parsed`);
    }
    return parseChecked(bytes.toString('utf8'));
  }

  #requireFewItems(): void {
    if (this.#items > this.#limits.items) {
      throw new JsonError('items', `has more than ${this.#limits.items} values`);
    }
    if (this.#deepest > JSON_DEPTH) {
      throw new JsonError('depth', `is nested deeper than ${JSON_DEPTH} levels`);
    }
  }

  /**
   * Returns the index after the quote that closes the string. If the piece does not contain this quote, returns the length of the piece.
   */
  #endOfString(piece: Buffer, from: number): number {
    let at = this.#escaped ? from + 1 : from;
    this.#inString = true;
    this.#escaped = false;
    while (at < piece.length) {
      const near = Math.min(piece.length, at + SHORT_STRING_BYTES);
      for (; at < near; at += piece[at] === BACKSLASH ? 2 : 1) {
        if (piece[at] === QUOTE) {
          this.#inString = false;
          return at + 1;
        }
      }
      at = skipTo(piece, at);
    }
    this.#escaped = at > piece.length;
    return piece.length;
  }
}

/**
 * Returns the index of the next quote in a string, or of the backslash that escapes this quote. Without a further quote, returns the length
 * of the piece, or one more if the piece ends with a backslash that escapes the next byte. `from` is in the string, after each escape.
 */
function skipTo(piece: Buffer, from: number): number {
  const quote = from < piece.length ? piece.indexOf(QUOTE, from) : from;
  const end = quote < 0 ? piece.length : quote;
  let start = end;
  while (start > from && piece[start - 1] === BACKSLASH) {
    start -= 1;
  }
  const isEscaped = (end - start) % 2 === 1;
  if (!isEscaped) {
    return Math.max(from, end);
  }
  return quote < 0 ? end + 1 : end - 1;
}

/**
 * Parses a text that {@link JsonCheck} has counted. A byte order mark at its beginning is skipped, as RFC 8259 allows, because editors and
 * shells of Windows write it. The error of JSON.parse is not passed on, because it repeats a part of the text.
 */
function parseChecked(text: string): unknown {
  try {
    return JSON.parse(text.startsWith(BYTE_ORDER_MARK) ? text.slice(1) : text);
  } catch {
    throw new JsonError('syntax', 'is not JSON');
  }
}

/** Parses JSON that is in memory. @throws JsonError when it exceeds a limit or is not JSON. */
export function parseJson(input: Buffer | string, limits: JsonLimits): unknown {
  const check = new JsonCheck(limits);
  if (typeof input !== 'string') {
    check.push(input);
    return check.parse(input);
  }
  // A text has at least as many bytes as characters. This check comes first, because it costs nothing.
  if (input.length > limits.bytes) {
    throw new JsonError('bytes', `is larger than ${limits.bytes} bytes`);
  }
  check.push(Buffer.from(input, 'utf8'));
  return parseChecked(input);
}
