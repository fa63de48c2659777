/**
 * Reads parts of a cluster for a support bundle, with limits for each part. If a part cannot be read, the reader notes the cause, and
 * continues with the next part.
 */
import { messageOf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';

/** Largest number of objects that one read returns. The JSON of 2,000 VMs is about 10 MB long. */
const OBJECTS = 2_000;
/** Largest size of one text in the bundle. A text is a log or the metrics of a host. */
const TEXT_BYTES = 1024 * 1024;
/**
 * Number of bytes after which the read of one text ends. Usual logs are shorter. The limit exists because a hostile host could send bytes
 * without end.
 */
const READ_BYTES = 16 * TEXT_BYTES;
/** Largest size of all texts and objects. The bundle must fit into memory and into an email. */
const TOTAL_BYTES = 64 * 1024 * 1024;
/** Time limit for one part. A host that does not answer must not use up the time for other parts. */
const PART_MILLISECONDS = 15_000;

interface Unread {
  readonly part: string;
  readonly cause: string;
}

export class Reader {
  readonly #client: KubeClient;
  readonly #signal: AbortSignal;
  readonly unread: Unread[] = [];
  #bytes = 0;

  /** When `signal` aborts, all reads end. */
  constructor(client: KubeClient, signal: AbortSignal) {
    this.#client = client;
    this.#signal = signal;
  }

  note(part: string, cause: unknown): void {
    this.unread.push({ part, cause: messageOf(cause) });
  }

  /**
   * Reads the objects of a kind, and returns the objects for which `isWanted` returns true. If `namespace` is given, reads only the objects
   * of this namespace. The result is undefined if the objects could not be read.
   */
  async objects<T extends KubeObject>(
    type: Resource<T>,
    options: { namespace?: string | undefined; labelSelector?: string } = {},
    isWanted: (object: T) => boolean = () => true,
  ): Promise<T[] | undefined> {
    const part = `${type.plural}${options.namespace === undefined ? '' : ` in namespace ${options.namespace}`}`;
    return await this.#noted(part, async (signal) => {
      const found: T[] = [];
      for await (const { items } of this.#client.pages(type, { ...options, signal })) {
        const wanted = items.filter(isWanted);
        found.push(...wanted);
        this.#count(JSON.stringify(wanted).length);
        if (found.length > OBJECTS) {
          this.note(part, `Only the first ${OBJECTS} objects were read`);
          break;
        }
      }
      return found.slice(0, OBJECTS);
    });
  }

  /**
   * Returns the text at the path. If it is longer than {@link TEXT_BYTES}, the result contains only its last lines, because the newest lines
   * of a log are the last ones. The result is undefined if the text could not be read.
   */
  async text(part: string, path: string): Promise<string | undefined> {
    return await this.#noted(part, async (signal) => {
      const pieces: Buffer[] = [];
      const enough = new AbortController();
      let bytes = 0;
      let kept = 0;
      const onData = (piece: Buffer) => {
        bytes += piece.length;
        kept += piece.length;
        pieces.push(piece);
        for (let [first] = pieces; first && kept - first.length > TEXT_BYTES; [first] = pieces) {
          kept -= first.length;
          pieces.shift();
        }
        if (bytes > READ_BYTES) {
          enough.abort();
        }
      };
      try {
        const joined = AbortSignal.any([signal, enough.signal]);
        const { status, body } = await this.#client.raw('GET', path, { signal: joined, onData });
        if (status !== 200) {
          throw apiErrorFrom(body, status);
        }
      } catch (error) {
        if (!enough.signal.aborted) {
          throw error;
        }
      }
      const text = Buffer.concat(pieces).subarray(-TEXT_BYTES);
      this.#count(text.length);
      if (bytes === text.length) {
        return text.toString('utf8');
      }
      this.note(part, `Only the last ${TEXT_BYTES} bytes are kept`);
      // The rest of a cut line is left out. It could be a part of a secret, which nobody recognizes without its beginning.
      return text.subarray(text.indexOf('\n') + 1).toString('utf8');
    });
  }

  async #noted<T>(part: string, read: (signal: AbortSignal) => Promise<T>): Promise<T | undefined> {
    try {
      this.#signal.throwIfAborted();
      return await read(AbortSignal.any([this.#signal, AbortSignal.timeout(PART_MILLISECONDS)]));
    } catch (error) {
      this.note(part, error);
      return undefined;
    }
  }

  #count(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes > TOTAL_BYTES) {
      throw new Error(`The bundle has reached its limit of ${TOTAL_BYTES} bytes`);
    }
  }
}
