/**
 * Connects to the serial console of a running machine. The guest's output comes from the files of the log writer. A connection gives only
 * the output that the log writer stores after the connection was made. Input goes to a named pipe, which is the hypervisor's standard
 * input. The guest never waits for a reader, because the log writer reads the guest's output even if nobody else reads it.
 */
import { constants, openSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { Duplex } from 'node:stream';
import { hasCode, undefinedIfSync } from '../../base/errors.ts';
import { run } from '../../base/exec.ts';
import { ConsoleTail } from './input.ts';
import { logsWritten, TERMINAL } from './logwriter.ts';

/** Time between two reads of the log. A user who types does not notice a delay of 20 ms, and a read takes less than 100 µs. */
const POLL_MILLISECONDS = 20;
/** Limit of one read in bytes. With this limit, one connection can read 3 MiB a second, which is more than a guest prints. */
const READ_BYTES = 64 * 1024;
/** Number of reads after which the agent checks whether the machine still runs. The time between two checks is one second. */
const READS_PER_CHECK = 50;
/** Time limit of the program mkfifo, which ends after a few milliseconds. */
const PROGRAM = { timeoutMilliseconds: 10_000 };

/**
 * Creates the pipe for the input of a machine's console. The new pipe replaces the pipe that was created at the previous start of the
 * machine.
 */
export async function makeTerminal(folder: string): Promise<void> {
  const path = join(folder, TERMINAL);
  await rm(path, { force: true });
  await run('mkfifo', ['-m', '600', path], PROGRAM);
}

/**
 * Connects to the console of a running machine. The stream ends when `isRunning` says that the machine has ended. Returns undefined if
 * the hypervisor has no pipe for input.
 */
export function connectTerminal(folder: string, isRunning: () => Promise<boolean>): Duplex | undefined {
  // With O_NONBLOCK, `openSync` does not wait until another process opens the pipe. If no process has the pipe open for reading, the error
  // is ENXIO.
  const flags = constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW;
  const fd = undefinedIfSync(hasCode('ENOENT', 'ENXIO'), () => openSync(join(folder, TERMINAL), flags));
  return fd === undefined ? undefined : new Terminal(folder, fd, isRunning);
}

class Terminal extends Duplex {
  readonly #folder: string;
  readonly #tail: ConsoleTail;
  readonly #input: Socket;
  readonly #isRunning: () => Promise<boolean>;
  #timer: NodeJS.Timeout | undefined;

  constructor(folder: string, fd: number, isRunning: () => Promise<boolean>) {
    super();
    this.#folder = folder;
    this.#tail = new ConsoleTail(folder, 'serial');
    this.#input = new Socket({ fd, readable: false, writable: true });
    this.#input.on('error', (error) => this.destroy(error));
    this.#isRunning = isRunning;
    this.#wait(1);
  }

  override _read(): void {
    // This function does nothing, because the output is added after each read of the log.
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: () => void): void {
    this.#input.write(chunk, () => done());
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.#timer);
    this.#input.destroy();
    done(error);
  }

  #wait(reads: number): void {
    this.#timer = setTimeout(() => {
      this.#next(reads).catch((error: unknown) => this.destroy(error as Error));
    }, POLL_MILLISECONDS).unref();
  }

  async #next(reads: number): Promise<void> {
    const hasEnded = reads % READS_PER_CHECK === 0 && !(await this.#isRunning());
    if (hasEnded) {
      await logsWritten(this.#folder);
    }
    if (this.destroyed) {
      return;
    }
    const bytes = this.#tail.next(READ_BYTES);
    if (bytes.length > 0) {
      this.push(bytes);
    }
    if (hasEnded && bytes.length === 0) {
      this.push(null);
      this.end();
    } else {
      this.#wait(hasEnded ? READS_PER_CHECK : reads + 1);
    }
  }
}
