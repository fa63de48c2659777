/** Runs the command `berth` as users and scripts do, in a process of its own. */
import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { bundleCommand } from '../../hack/cli/executable.ts';
import { StartedProgram } from './startedprogram.ts';

export interface CommandResult {
  readonly code: number | null;
  /** Standard output of the command. If both streams are read as one, it has the text of both. */
  readonly out: string;
  readonly err: string;
}

export interface CommandOptions {
  readonly environment?: Record<string, string>;
  /** Whether standard output and standard error are read as one stream. Integrations do this. */
  readonly together?: boolean;
  /** Path of a kubeconfig that replaces the user's kubeconfig. */
  readonly kubeconfig?: string;
  /** Called with all that the command has written to its error stream so far. */
  readonly onError?: (written: string) => void;
  /** What the command reads from its standard input. */
  readonly input?: string;
  /** Interrupts the command as the user does. */
  readonly interrupt?: Promise<unknown>;
}

export class BerthCommand implements AsyncDisposable {
  readonly #folder: string;
  readonly #kubeconfig: string;

  private constructor(folder: string, kubeconfig: string) {
    this.#folder = folder;
    this.#kubeconfig = kubeconfig;
  }

  /** Makes the bundle of the command. The user has the kubeconfig and no settings. */
  static async make(kubeconfig: string): Promise<BerthCommand> {
    const folder = await mkdtemp(join(tmpdir(), 'berth-command-'));
    await bundleCommand(folder);
    return new BerthCommand(folder, kubeconfig);
  }

  /** Folder with the settings and the sessions of the user. */
  get settings(): string {
    return join(this.#folder, 'settings', 'berth');
  }

  /** File with the host keys of VMs. */
  get knownHosts(): string {
    return join(this.#folder, 'state', 'berth', 'known_hosts');
  }

  /** Returns the environment of a shell in which `berth` is the command. */
  installed(): NodeJS.ProcessEnv {
    const folder = join(this.#folder, 'bin');
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'berth'), `#!/bin/sh\nexec ${this.expected(['"$@"']).join(' ')}\n`, {
      mode: 0o755,
    });
    const environment = this.#environment({});
    return { ...environment, PATH: `${folder}:${environment['PATH']}` };
  }

  /** Writes the settings file of the user. */
  configure(settings: string): void {
    mkdirSync(this.settings, { recursive: true });
    writeFileSync(join(this.settings, 'config.yaml'), settings);
  }

  /** Runs the command and resolves when it has ended. */
  async run(args: readonly string[], options: CommandOptions = {}): Promise<CommandResult> {
    const { together = false, input = '', interrupt, onError } = options;
    const command = this.expected(args);
    const shell = ['-c', together ? 'exec "$@" 2>&1' : 'exec "$@"', 'sh', ...command];
    const child = spawn('/bin/sh', shell, {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: this.#environment(options),
    });
    const written = { out: '', err: '' };
    // A command that reads nothing may end before the input is written.
    child.stdin.on('error', () => undefined).end(input);
    child.stdout.setEncoding('utf8').on('data', (text: string) => void (written.out += text));
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      written.err += text;
      onError?.(written.err);
    });
    const { promise, resolve, reject } = Promise.withResolvers<number | null>();
    child.on('error', reject).on('close', resolve);
    void interrupt?.then(
      () => child.kill('SIGINT'),
      () => undefined,
    );
    return { code: await promise, ...written };
  }

  /** Starts the command, for tests that follow its output or write its input. */
  start(
    args: readonly string[],
    options: Pick<CommandOptions, 'environment' | 'kubeconfig'> = {},
  ): StartedProgram {
    const [file = '', ...rest] = this.expected(args);
    return new StartedProgram(file, rest, this.#environment(options));
  }

  /** Starts a script of the shell in a terminal. `berth` is the command there. */
  inTerminal(script: string): StartedProgram {
    const berth = this.expected([]).join(' ');
    const shell = `berth() { ${berth} "$@"; }; ${script}`;
    return new StartedProgram('script', ['-qec', shell, '/dev/null'], {
      ...this.#environment({}),
      SHELL: '/bin/sh',
      TERM: 'xterm',
    });
  }

  /** Returns the program and its arguments. */
  expected(args: readonly string[]): string[] {
    return [process.execPath, join(this.#folder, 'berth'), ...args];
  }

  #environment({ environment, kubeconfig = this.#kubeconfig }: CommandOptions): NodeJS.ProcessEnv {
    return {
      PATH: process.env.PATH,
      // The keys of the person who runs the tests are not those of the user.
      HOME: join(this.#folder, 'home'),
      XDG_CONFIG_HOME: join(this.#folder, 'settings'),
      XDG_STATE_HOME: join(this.#folder, 'state'),
      XDG_CACHE_HOME: join(this.#folder, 'cache'),
      KUBECONFIG: kubeconfig,
      ...environment,
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#folder, { recursive: true, force: true });
  }
}
