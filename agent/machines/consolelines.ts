import { StringDecoder } from 'node:string_decoder';
import type { ConsoleRecord } from './consoleread.ts';

/** A prompt (`login: `) has no line feed: what has waited this long is stored without one. */
const PARTIAL_MILLISECONDS = 1_000;
/** A guest may never end a line. */
const LINE_LIMIT_CHARACTERS = 16 * 1024;

/** Cuts a stream of bytes into records. */
export class ConsoleLines {
  readonly #decoder = new StringDecoder('utf8');
  #partial = '';
  #since: Date | undefined;

  /** The lines that these bytes end, and pieces of lines that are too long. */
  push(bytes: Buffer, now: Date): ConsoleRecord[] {
    const time = now.toISOString();
    const lines = (this.#partial + this.#decoder.write(bytes)).split('\n');
    const last = lines.pop() ?? '';
    const records = lines.map((line) => ({ time, ended: true, text: clean(line) }));
    this.#since = last === '' ? undefined : (this.#since ?? now);
    this.#partial = last;
    while (this.#partial.length > LINE_LIMIT_CHARACTERS) {
      records.push({ time, ended: false, text: clean(this.#partial.slice(0, LINE_LIMIT_CHARACTERS)) });
      this.#partial = this.#partial.slice(LINE_LIMIT_CHARACTERS);
    }
    return records;
  }

  /** The line that was begun, once it has waited long enough. */
  flush(now: Date): ConsoleRecord[] {
    if (this.#since === undefined || now.getTime() - this.#since.getTime() < PARTIAL_MILLISECONDS) return [];
    const text = clean(this.#partial);
    this.#partial = '';
    this.#since = undefined;
    return [{ time: now.toISOString(), ended: false, text }];
  }
}

/** Carriage returns would overwrite lines on a person's terminal. */
function clean(text: string): string {
  return text.replaceAll('\r', '');
}
