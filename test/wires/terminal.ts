/** A terminal for tests: tmux with one window. Tests type, press keys and read the screen. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { run } from '../../base/exec.ts';
import { waitFor } from '../../hack/wait.ts';

/** Time limit of one request to tmux. It normally answers immediately, and only a busy machine delays it. */
const TMUX_MILLISECONDS = 60_000;
/** Time limit of one line of the user. Deployments of emulated guests take the longest. */
const LINE_MILLISECONDS = 180_000;
/** Time limit until the terminal shows a text. A login into an emulated guest takes the longest. */
const TEXT_MILLISECONDS = 90_000;
/** Screen that fits the widest table. */
const SIZE = { columns: 160, rows: 40 };
/** Prompt of the shell, with the exit code of the last line. */
const PROMPT = /^\((\d+)\)> ?/m;

export interface TerminalOptions {
  /** Environment of the shell. */
  readonly environment: NodeJS.ProcessEnv;
  /** Shell with its arguments. The default is one that {@link TestTerminal.enter} understands. */
  readonly shell?: readonly string[];
}

/** Output of a command line that the user entered, and its exit code. */
export interface LineResult {
  readonly code: number;
  readonly shown: string;
}

export class TestTerminal implements AsyncDisposable {
  readonly #folder: string;
  readonly #environment: NodeJS.ProcessEnv;

  private constructor(folder: string, environment: NodeJS.ProcessEnv) {
    this.#folder = folder;
    this.#environment = environment;
  }

  static async open({ environment, shell = ['sh'] }: TerminalOptions): Promise<TestTerminal> {
    const folder = await mkdtemp(join(tmpdir(), 'berth-terminal-'));
    const start = join(folder, 'start');
    // The shell of root does not take the prompt from the environment.
    await writeFile(start, "PS1='($?)> '\n");
    const terminal = new TestTerminal(folder, { ...environment, LC_ALL: 'C.UTF-8', ENV: start });
    const size = ['-x', String(SIZE.columns), '-y', String(SIZE.rows)];
    await terminal.#tmux('new-session', '-d', ...size, ...shell);
    await terminal.#tmux('set-option', '-g', 'window-size', 'manual');
    return terminal;
  }

  /** Types the text. */
  async type(text: string): Promise<void> {
    await this.#tmux('send-keys', '-l', '--', text);
  }

  /** Presses keys, which have the names of tmux: `Enter`, `Tab`, `C-c`. */
  async press(...keys: string[]): Promise<void> {
    await this.#tmux('send-keys', ...keys);
  }

  /** Changes the size of the terminal, as a user does with the mouse. */
  async resize(columns: number, rows: number): Promise<void> {
    await this.#tmux('resize-window', '-x', String(columns), '-y', String(rows));
  }

  /** Returns all that the terminal has shown, without the spaces at the ends of lines. */
  async shown(): Promise<string> {
    const text = await this.#tmux('capture-pane', '-p', '-J', '-S', '-');
    return text.replaceAll(/[ \t]+$/gm, '').trimEnd();
  }

  /**
   * Resolves when the terminal has shown a text of this form.
   *
   * @throws Error with the content of the screen if this does not happen in time.
   */
  async shows(pattern: RegExp): Promise<RegExpExecArray> {
    let text = '';
    const look = async (): Promise<RegExpExecArray> => {
      text = await this.shown();
      const match = pattern.exec(text);
      if (match === null) {
        throw new Error(text);
      }
      return match;
    };
    const options = { deadlineMilliseconds: TEXT_MILLISECONDS };
    return await waitFor(`the terminal to show ${pattern}`, look, options);
  }

  /** Enters a line, and resolves when the shell asks for the next one. */
  async enter(line: string): Promise<LineResult> {
    await this.shows(/^\(\d+\)>$/m);
    await this.clear();
    await this.type(line);
    await this.press('Enter');
    return await this.answer();
  }

  /** Resolves when the shell asks for the next line. The result is the output and exit code of the line before. */
  async answer(): Promise<LineResult> {
    const options = { deadlineMilliseconds: LINE_MILLISECONDS };
    return await waitFor('the shell to ask', async () => resultIn(await this.shown()), options);
  }

  /** Clears everything that was shown, including the line with the cursor. */
  async clear(): Promise<void> {
    await this.#tmux('send-keys', '-R', ';', 'clear-history');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#tmux('kill-server');
    await rm(this.#folder, { recursive: true, force: true });
  }

  async #tmux(...args: string[]): Promise<string> {
    const own = ['-S', join(this.#folder, 'tmux'), '-f', '/dev/null', '-u'];
    return await run('tmux', [...own, ...args], {
      timeoutMilliseconds: TMUX_MILLISECONDS,
      environment: this.#environment,
    });
  }
}

/** Returns the result of the first line. @throws Error with the screen as long as there is none. */
function resultIn(screen: string): LineResult {
  const [, ...lines] = screen.split('\n');
  const [, code] = PROMPT.exec(lines.at(-1) ?? '') ?? [];
  if (code === undefined) {
    throw new Error(screen);
  }
  return { code: Number(code), shown: lines.slice(0, -1).join('\n') };
}
