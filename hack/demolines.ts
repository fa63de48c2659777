/**
 * `make demo-lines` types the commands of README.md and of the pages into a terminal, as a reader of them does after `make demo`: a fresh
 * shell for each page, and its lines in their order. Only blocks that begin with "```sh demo" are for the demo. It ends with 1 if a
 * line fails.
 */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import { limitTime } from '../base/exec.ts';
import { describeError, runCommand } from './command.ts';
import { waitFor } from './wait.ts';

const ROOT = join(import.meta.dirname, '..');
/** The README deletes the VM at its end, so it is the last one. */
const PAGES = [
  'docs/how-to/log-in.md',
  'docs/how-to/screen-and-console.md',
  'docs/how-to/ports.md',
  'README.md',
];
const BLOCKS = /^```sh demo\n([\s\S]*?)^```/gm;
/** Time limit of a line. `make cli` and a start of an emulated guest take the longest on a busy machine. */
const LINE_MILLISECONDS = 300_000;
/** Time limit of the end of a shell. A shell that still waits for a command is killed. */
const END_MILLISECONDS = 10_000;
/** Interval after which a person presses Enter again in a silent console. */
const ENTER_MILLISECONDS = 2_000;
/**
 * Settings of the reader: the key for ssh, which the reader's own VMs would know. curl fails at an HTTP error, and a look at the greeting
 * of the VNC server stands for a viewer, which needs a desktop.
 */
export const SETTINGS = `PS1='[ended: $?]' PS2=; stty -echo
ssh() { command ssh -i .berth/demo/ssh/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "$@"; }
curl() { command curl --fail-with-body --silent --show-error "$@"; }
vncviewer() { timeout 30 bash -c 'exec 3<>/dev/tcp/127.0.0.1/5900 && head -c 3 <&3 | grep RFB'; }`;

/** A command that asks the reader at the end of its output. `enter` is pressed until it asks. */
interface Dialog {
  readonly command: RegExp;
  readonly question: RegExp;
  readonly enter: string;
  readonly answer: string;
}

/** Prompt of a shell of root in the guest. */
const PROMPT = /# ?$/;
const DIALOGS: readonly Dialog[] = [
  { command: /^ssh /, question: PROMPT, enter: '', answer: 'exit\n' },
  { command: / attach -it | vm console /, question: PROMPT, enter: '\n', answer: '\u001d' },
  { command: /berth vm delete /, question: /\[y\/N\] ?$/, enter: '', answer: 'y\n' },
];
/** Prompt of the reader's shell, with the exit code of the last line. */
const ENDED = /\[ended: (\d+)\]/;

/** A shell on a terminal of its own. */
export class Shell {
  readonly #child: ChildProcessWithoutNullStreams;
  #output = '';

  constructor() {
    // The shell of `script` is what a reader has: programs see a terminal. With CI in the environment, the command would ask nothing.
    const { CI: _ci, ...env } = process.env;
    this.#child = spawn('script', ['-qefc', 'bash --noprofile --norc --noediting -i', '/dev/null'], {
      cwd: ROOT,
      env,
    });
    this.#child.stdout.setEncoding('utf8').on('data', (text: string) => {
      this.#output += text;
    });
    this.#child.stdin.on('error', () => undefined);
  }

  /** Types a line and waits for its end. Returns its exit code and what the terminal showed. */
  async type(line: string): Promise<{ code: number; shown: string }> {
    this.#output = '';
    this.#child.stdin.write(`${line}\n`);
    const dialog = DIALOGS.find(({ command }) => command.test(line));
    if (dialog !== undefined) {
      await this.#until(`the question of ${line}`, dialog.question, dialog.enter);
      this.#child.stdin.write(dialog.answer);
    }
    const [, code] = await this.#until(`the end of ${line}`, ENDED);
    if (line.includes('port-forward')) {
      await this.#until(line, /Forwarding from/);
    }
    return { code: Number(code), shown: this.#output.replace(ENDED, '') };
  }

  /** Ends the shell and the commands in its background. */
  async end(): Promise<void> {
    const closed = once(this.#child, 'close');
    limitTime(this.#child, END_MILLISECONDS);
    this.#child.stdin.write('kill $(jobs -p); exit\n');
    await closed;
  }

  async #until(what: string, pattern: RegExp, enter = ''): Promise<RegExpExecArray> {
    const presses = setInterval(() => this.#child.stdin.write(enter), ENTER_MILLISECONDS);
    try {
      const look = () => pattern.exec(stripVTControlCharacters(this.#output)) ?? undefined;
      return await waitFor(what, look, { deadlineMilliseconds: LINE_MILLISECONDS });
    } catch (error) {
      throw new Error(`${describeError(error)}; the terminal shows: ${this.#output}`, { cause: error });
    } finally {
      clearInterval(presses);
    }
  }
}

/** Types the lines of a page. Returns those that failed. */
async function typePage(page: string): Promise<string[]> {
  const text = await readFile(join(ROOT, page), 'utf8');
  const lines = [...text.matchAll(BLOCKS)].flatMap(([, block = '']) => block.trim().split('\n'));
  const failed: string[] = [];
  const shell = new Shell();
  try {
    await shell.type(SETTINGS.replaceAll('\n', '; '));
    await shell.type('. .berth/demo/env');
    for (const line of lines) {
      process.stdout.write(`${page}$ ${line}\n`);
      const began = Date.now();
      const { code, shown } = await shell.type(line);
      process.stdout.write(`${shown}# code ${code}, ${((Date.now() - began) / 1000).toFixed(1)} s\n`);
      if (code !== 0) {
        failed.push(`${page}: ${line}`);
      }
    }
  } finally {
    await shell.end();
  }
  return failed;
}

async function main(): Promise<void> {
  const failed: string[] = [];
  for (const page of PAGES) {
    failed.push(...(await typePage(page)));
  }
  if (failed.length > 0) {
    throw new Error(`These lines failed:\n${failed.join('\n')}`);
  }
}

if (import.meta.main) {
  await runCommand(main);
}
