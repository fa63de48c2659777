/** A kubectl that runs for some time, with what it has printed so far. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';

const PRINTS_MILLISECONDS = 30_000;

export class Kubectl {
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #output = { stdout: '', stderr: '' };
  readonly #closed: Promise<unknown[]>;

  constructor(file: string, args: readonly string[]) {
    this.#child = spawn(file, args, { stdio: 'pipe' });
    for (const name of ['stdout', 'stderr'] as const) {
      this.#child[name].setEncoding('utf8').on('data', (text: string) => {
        this.#output[name] += text;
        this.#child.emit('printed');
      });
    }
    // If kubectl ends before it has read its input, its messages contain the reason.
    this.#child.stdin.on('error', () => undefined);
    this.#closed = once(this.#child, 'close');
  }

  /** Resolves when kubectl has printed a text of this form. @throws Error with its output when it does not within the time. */
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
        throw new Error(`kubectl did not print ${pattern}: ${text}`, { cause: error });
      }
    }
  }

  type(text: string | Buffer): void {
    this.#child.stdin.write(text);
  }

  endInput(): void {
    this.#child.stdin.end();
  }

  /** Ends kubectl's input and returns its output and exit code when it has ended. */
  async result(): Promise<{ stdout: string; stderr: string; code: number | null }> {
    this.#child.stdin.end();
    await this.#closed;
    return { ...this.#output, code: this.#child.exitCode };
  }

  kill(): void {
    this.#child.kill('SIGKILL');
  }
}
