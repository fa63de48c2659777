/** What Go reads in certificate requests and certificates: the API server and its signer are written in it. */
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { NO_DEBUG_INFORMATION } from '../../../hack/cluster/toolchain/build.ts';

export interface GoInput {
  kind: 'request' | 'certificate';
  /** Bytes as they stand in the API object. */
  pem: string | Uint8Array;
}

export interface GoReading {
  /** Nothing else counts where there is one. */
  error?: string;
  commonName: string;
  organizations: string[];
  dnsNames: string[];
  ipAddresses: string[];
  /** E-mail addresses, URIs, and other parts of the subject. */
  others: string[];
}

const SOURCE = join(import.meta.dirname, 'goparser');
/** With those of the control plane's programs, Go's own library is compiled already where they were built. */
const FLAGS = ['-buildvcs=false', NO_DEBUG_INFORMATION];
/** Where they were not, a busy machine compiles it once. */
export const GO_BUILD_MILLISECONDS = 300_000;
const RUN_MILLISECONDS = 60_000;

export class GoParser implements AsyncDisposable {
  readonly #directory: string;

  private constructor(directory: string) {
    this.#directory = directory;
  }

  /** Builds the program, with Go's standard library alone. */
  static async build(): Promise<GoParser> {
    const directory = await mkdtemp(join(tmpdir(), 'berth-goparser-'));
    const parser = new GoParser(directory);
    try {
      await run('go', ['build', ...FLAGS, '-o', parser.#program, '.'], '', GO_BUILD_MILLISECONDS);
      return parser;
    } catch (error) {
      await parser[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** All of them in one process, in their order. */
  async read(inputs: readonly GoInput[]): Promise<GoReading[]> {
    const lines = inputs.map(({ kind, pem }) =>
      JSON.stringify({ kind, pem: Buffer.from(pem as Uint8Array).toString('base64') }),
    );
    const answer = await run(this.#program, [], lines.join('\n'), RUN_MILLISECONDS);
    const readings = answer
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as GoReading);
    if (readings.length !== inputs.length) {
      throw new Error(`Go answered ${readings.length} of ${inputs.length} questions`);
    }
    return readings;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#directory, { recursive: true, force: true });
  }

  get #program(): string {
    return join(this.#directory, 'goparser');
  }
}

async function run(file: string, args: string[], input: string, timeout: number): Promise<string> {
  const env = { ...process.env, CGO_ENABLED: '0', GOTOOLCHAIN: 'local' };
  const child = spawn(file, args, { cwd: SOURCE, env, timeout, stdio: 'pipe' });
  const ended = new Promise<string>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => resolve(signal ?? `code ${code}`));
  });
  // A program that ends early closes its input; how it ended is the error to tell.
  child.stdin.on('error', () => undefined).end(input);
  const [output, errors, end] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
  if (end !== 'code 0') {
    throw new Error(`${file} ended with ${end}: ${errors}`);
  }
  return output;
}
