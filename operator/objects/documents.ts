/** Parses the JSON documents that operator and hosts write into annotations and conditions. */
import { LRUCache } from 'lru-cache';
import type * as z from 'zod';
import { parseDocument } from '../../api/v1alpha1/machine.ts';

/**
 * Limit of the cache in characters: the total length of all texts whose parsed documents are kept. The texts of 1,000 VMs fit. A single
 * text above the limit is not kept, so it is parsed each time.
 */
const REMEMBERED_CHARACTERS = 1_000_000;

/**
 * Parser for the documents of one schema. It caches parsed documents by their text. A reconcile needs a document several times, and all
 * versions of a Pod have the same documents. To look up a document is much faster than to check it again. Callers must not change a
 * document.
 */
export class Documents<T extends object> {
  readonly #schema: z.ZodType<T>;
  readonly #known = new LRUCache<string, { readonly document: T | undefined }>({
    maxSize: REMEMBERED_CHARACTERS,
    // The size of an entry must not be 0, even if its text is empty.
    sizeCalculation: (_, text) => text.length + 1,
  });

  constructor(schema: z.ZodType<T>) {
    this.#schema = schema;
  }

  /** Returns the document in a text. The result is undefined if the text is absent, is not JSON, or does not match the schema. */
  in(text: string | undefined): T | undefined {
    if (text === undefined) {
      return undefined;
    }
    const known = this.#known.get(text);
    if (known !== undefined) {
      return known.document;
    }
    const { data: document } = this.#schema.safeParse(parseDocument(text));
    this.#known.set(text, { document });
    return document;
  }
}
