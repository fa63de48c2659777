/**
 * Reads a list while it arrives, a few objects at a time. Therefore the objects of a long list are never all in memory, and the caller
 * handles them while the API server sends more. Parsing the whole list at once would block the event loop, and the garbage collector would
 * copy its objects several times.
 */
import type { KubeClient } from './client.ts';
import { apiErrorFrom } from './errors.ts';
import { parseWithoutManagedFields } from './json.ts';

const QUOTE = 0x22;
const OPEN_ARRAY = 0x5b;
const BACKSLASH = 0x5c;
const CLOSE_ARRAY = 0x5d;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;
/** JSON key of the list `managedFields`, with the colon. Berth does not need this list. */
const MANAGED_FIELDS = Buffer.from('"managedFields":');
/** Number of brackets that are open between two objects of a list: the `{` of the list, and the `[` of its field `items`. */
const ARRAY_DEPTH = 2;
/**
 * Number of bytes after which the collected objects are parsed together as one batch. Parsing a batch takes less than a millisecond, and
 * much less time than parsing each object separately.
 */
const BATCH_BYTES = 64 * 1024;

/** Metadata of a list. */
export interface ListMeta {
  resourceVersion: string;
  /** Position of the next page. Empty or absent on the last page. */
  continue?: string;
}

/**
 * Reads the list at the path and calls `visit` for each object. The path includes the query. The objects can lack apiVersion and kind,
 * because API servers leave them out in lists.
 *
 * @throws ApiError when the API server refuses. In this case, `visit` was not called. @throws the reason of the signal when the signal
 * aborts.
 */
export async function readList(
  client: KubeClient,
  path: string,
  visit: (object: unknown) => void,
  signal?: AbortSignal,
): Promise<ListMeta> {
  const splitter = new ListSplitter((text) => {
    (parseWithoutManagedFields(text) as unknown[]).forEach(visit);
  });
  const { status, body, retryAfterMilliseconds } = await client.raw('GET', path, {
    onData: (piece) => splitter.push(piece),
    signal,
  });
  if (status !== 200) {
    throw apiErrorFrom(body, status, retryAfterMilliseconds);
  }
  return (JSON.parse(splitter.rest) as { metadata: ListMeta }).metadata;
}

/** Splits the JSON of a list, which arrives in pieces of any size. It parses nothing: it only counts brackets and finds ends of strings. */
export class ListSplitter {
  readonly #take: (text: string) => void;
  readonly #rest: Buffer[] = [];
  /** The part of the array of objects that was received, but not yet passed to `take`. `#size` is its length in bytes. */
  #array: Buffer[] = [];
  #size = 0;
  /** Number of bytes in `#array` up to the end of the last complete object. */
  #whole = 0;
  /** Number of brackets that are open at the current position in the JSON. */
  #depth = 0;
  /** Whether the current position is inside the array of objects. */
  #inArray = false;
  #inString = false;
  /**
   * Depth of the list of managed fields that is being left out: the number of open brackets, including its own. It is 0 outside of such a
   * list.
   */
  #leftOut = 0;
  /**
   * Number of bytes to skip at the start of the next piece. It is 1 if the last piece ended with a backslash in a string. In that case, the
   * next byte can be an escaped quote, which does not end the string.
   */
  #skip = 0;

  /** `take` is called with the JSON of an array that contains some of the objects, in their order. */
  constructor(take: (text: string) => void) {
    this.#take = take;
  }

  /** Returns the JSON of the list without its objects. It is complete after the last piece. */
  get rest(): string {
    return Buffer.concat(this.#rest).toString();
  }

  push(piece: Buffer): void {
    let from = 0;
    let at = this.#inString ? this.#endOfString(piece, this.#skip) + 1 : 0;
    for (; at < piece.length; at += 1) {
      const byte = piece[at];
      if (byte === QUOTE) {
        at = this.#endOfString(piece, at + 1);
      } else if (byte === OPEN_OBJECT || byte === OPEN_ARRAY) {
        from = this.#open(piece, from, at);
      } else if (byte === CLOSE_OBJECT || byte === CLOSE_ARRAY) {
        from = this.#close(piece, from, at);
      }
    }
    this.#hand(piece, from, piece.length);
    if (this.#whole >= BATCH_BYTES) {
      this.#takeWhole();
    }
  }

  /** Returns the index of the quote that closes the string. If the piece does not contain this quote, the index is after the piece. */
  #endOfString(piece: Buffer, from: number): number {
    let at = from;
    while (at < piece.length && piece[at] !== QUOTE) {
      at += piece[at] === BACKSLASH ? 2 : 1;
    }
    this.#inString = at >= piece.length;
    this.#skip = at - piece.length;
    return at;
  }

  /** Handles an opening bracket. Returns the index of the first byte of `piece` that was not yet added to `#array` or `#rest`. */
  #open(piece: Buffer, from: number, at: number): number {
    this.#depth += 1;
    if (this.#inArray) {
      return this.#leftOut === 0 && piece[at] === OPEN_ARRAY && endsWith(piece, at, MANAGED_FIELDS)
        ? this.#leaveOut(piece, from, at + 1)
        : from;
    }
    if (this.#depth !== ARRAY_DEPTH || piece[at] !== OPEN_ARRAY) {
      return from;
    }
    const next = this.#hand(piece, from, at + 1);
    this.#inArray = true;
    return next;
  }

  /** Handles a closing bracket. Returns the index of the first byte of `piece` that was not yet added to `#array` or `#rest`. */
  #close(piece: Buffer, from: number, at: number): number {
    this.#depth -= 1;
    if (this.#leftOut > this.#depth) {
      this.#leftOut = 0;
      return at;
    }
    if (!this.#inArray || this.#depth > ARRAY_DEPTH) {
      return from;
    }
    if (this.#depth === ARRAY_DEPTH) {
      this.#whole = this.#size + at + 1 - from;
      return from;
    }
    this.#hand(piece, from, at);
    this.#takeWhole();
    this.#inArray = false;
    return at;
  }

  /** Appends a part of the piece to `#array` or to `#rest`. The part begins at `from` and ends before `end`. Returns `end`. */
  #hand(piece: Buffer, from: number, end: number): number {
    if (this.#leftOut > 0) {
      return end;
    }
    const bytes = piece.subarray(from, end);
    if (this.#inArray) {
      this.#array.push(bytes);
      this.#size += bytes.length;
    } else {
      this.#rest.push(bytes);
    }
    return end;
  }

  /** Begins to leave out the content of a `managedFields` list. Only the brackets of this list are kept. */
  #leaveOut(piece: Buffer, from: number, at: number): number {
    this.#hand(piece, from, at);
    this.#leftOut = this.#depth;
    return at;
  }

  #takeWhole(): void {
    const bytes = Buffer.concat(this.#array);
    // A batch can begin with the comma between its first object and the last object of the previous batch. This comma is removed.
    const text = bytes.toString('utf8', 0, this.#whole).replace(/^\s*,/, '');
    this.#array = [bytes.subarray(this.#whole)];
    this.#size -= this.#whole;
    this.#whole = 0;
    this.#take(`[${text}]`);
  }
}

/** Returns whether the bytes before `at` end with the text. */
function endsWith(bytes: Buffer, at: number, text: Buffer): boolean {
  return at >= text.length && bytes.compare(text, 0, text.length, at - text.length, at) === 0;
}
