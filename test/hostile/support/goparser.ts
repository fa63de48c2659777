/** Reads certificate requests and certificates with Go, because the API server and its signer are written in Go. */
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { limitTime } from '../../../base/exec.ts';
import { NO_DEBUG_INFORMATION } from '../../../hack/cluster/toolchain/build.ts';

export interface GoInput {
  kind: 'request' | 'certificate';
  /** Bytes as in the API object. */
  pem: string | Uint8Array;
}

export interface GoReading {
  /** If there is an error, the other fields have no meaning. */
  error?: string;
  commonName: string;
  organizations: string[];
  dnsNames: string[];
  ipAddresses: string[];
  /** E-mail addresses, URIs, and other parts of the subject. */
  others: string[];
}

const SOURCE = join(import.meta.dirname, 'goparser');
/** The flags are those of the control plane's programs, so Go's library may be compiled with them already. */
const FLAGS = ['-buildvcs=false', NO_DEBUG_INFORMATION];
/** Time limit of the build. If Go's library is not compiled yet, a busy machine compiles it once. */
export const GO_BUILD_MILLISECONDS = 300_000;
const RUN_MILLISECONDS = 60_000;

export class GoParser implements AsyncDisposable {
  readonly #directory: string;

  private constructor(directory: string) {
    this.#directory = directory;
  }

  /** Builds the program, which uses only Go's standard library. */
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

  /** Reads all inputs in one process. The results have the order of the inputs. */
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
  const child = spawn(file, args, { cwd: SOURCE, env, stdio: 'pipe' });
  limitTime(child, timeout);
  const ended = new Promise<string>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => resolve(signal ?? `code ${code}`));
  });
  // A program that ends early closes its input. Its exit code is the error to report.
  child.stdin.on('error', () => undefined).end(input);
  const [output, errors, end] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
  if (end !== 'code 0') {
    throw new Error(`${file} ended with ${end}: ${errors}`);
  }
  return output;
}
