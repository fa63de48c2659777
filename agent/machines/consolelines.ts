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
  #pending = 0;

  /** How many of the last bytes are in no record yet. */
  get pending(): number {
    return this.#pending;
  }

  /** The lines that these bytes end, and pieces of lines that are too long. */
  push(bytes: Buffer, now: Date): ConsoleRecord[] {
    const time = now.toISOString();
    const lines = (this.#partial + this.#decoder.write(bytes)).split('\n');
    const last = lines.pop() ?? '';
    const records = lines.map((line) => ({ time, ended: true, text: clean(line) }));
    this.#since = last === '' ? undefined : (this.#since ?? now);
    this.#partial = last;
    const end = bytes.lastIndexOf('\n');
    this.#pending = end < 0 ? this.#pending + bytes.length : bytes.length - end - 1;
    while (this.#partial.length > LINE_LIMIT_CHARACTERS) {
      records.push({ time, ended: false, text: clean(this.#partial.slice(0, LINE_LIMIT_CHARACTERS)) });
      this.#partial = this.#partial.slice(LINE_LIMIT_CHARACTERS);
      this.#pending = Math.min(this.#pending, Buffer.byteLength(this.#partial));
    }
    return records;
  }

  /** Says in a line of its own that bytes are missing here; ends the line before. */
  gap(bytes: number, now: Date): ConsoleRecord[] {
    const text = clean(this.#partial + this.#decoder.end());
    this.#begin();
    const missing = `[${bytes} bytes of the console were lost: nobody read them in time]`;
    return [text, missing].map((line) => ({ time: now.toISOString(), ended: true, text: line }));
  }

  /** The line that was begun, once it has waited long enough. */
  flush(now: Date): ConsoleRecord[] {
    if (this.#since === undefined || now.getTime() - this.#since.getTime() < PARTIAL_MILLISECONDS) {
      return [];
    }
    const text = clean(this.#partial);
    this.#begin();
    return [{ time: now.toISOString(), ended: false, text }];
  }

  #begin(): void {
    this.#partial = '';
    this.#since = undefined;
    this.#pending = 0;
  }
}

/** Carriage returns would overwrite lines on a person's terminal. */
function clean(text: string): string {
  return text.replaceAll('\r', '');
}
