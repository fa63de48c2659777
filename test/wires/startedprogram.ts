/** A program that runs for some time, with what it has printed so far. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';

const PRINTS_MILLISECONDS = 60_000;

export interface ProgramResult {
  readonly stdout: string;
  readonly stderr: string;
  readonly code: number | null;
}

export class StartedProgram {
  readonly #file: string;
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #output = { stdout: '', stderr: '' };
  readonly #closed: Promise<unknown[]>;

  constructor(file: string, args: readonly string[], environment: NodeJS.ProcessEnv = process.env) {
    this.#file = file;
    this.#child = spawn(file, args, { stdio: 'pipe', env: environment });
    for (const name of ['stdout', 'stderr'] as const) {
      this.#child[name].setEncoding('utf8').on('data', (text: string) => {
        this.#output[name] += text;
        this.#child.emit('printed');
      });
    }
    // If the program ends before it has read its input, its messages contain the reason.
    this.#child.stdin.on('error', () => undefined);
    this.#closed = once(this.#child, 'close');
  }

  /** Resolves when it has printed a text of this form. @throws Error with its output when it does not within the time. */
  async prints(pattern: RegExp, milliseconds = PRINTS_MILLISECONDS): Promise<RegExpExecArray> {
    const signal = AbortSignal.timeout(milliseconds);
    for (;;) {
      const text = this.#output.stdout + this.#output.stderr;
      const match = pattern.exec(text);
      if (match !== null) {
        return match;
      }
      try {
        await once(this.#child, 'printed', { signal });
      } catch (error) {
        throw new Error(`${this.#file} did not print ${pattern}: ${text}`, { cause: error });
      }
    }
  }

  type(text: string | Buffer): void {
    this.#child.stdin.write(text);
  }

  endInput(): void {
    this.#child.stdin.end();
  }

  /** Ends the program's input and returns its output and exit code when it has ended. */
  async result(): Promise<ProgramResult> {
    this.#child.stdin.end();
    return await this.ended();
  }

  /** Returns its output and exit code when it has ended. Its input stays open. */
  async ended(): Promise<ProgramResult> {
    await this.#closed;
    return { ...this.#output, code: this.#child.exitCode };
  }

  /** Ends the program as a user does with Ctrl+C, or with another signal. */
  interrupt(signal: NodeJS.Signals = 'SIGINT'): void {
    this.#child.kill(signal);
  }

  kill(): void {
    this.#child.kill('SIGKILL');
  }
}
