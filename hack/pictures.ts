/**
 * `make pictures` makes the pictures of README.md and of the pages, on the running demo: `berth` in a terminal, the screen of the guest with
 * keys that were typed over VNC, the dashboard, and the page of the HTTP API in a browser. It sends the page's own examples by "Try it out",
 * and fails if an answer is not the expected one. It needs Debian's packages `chromium` and `prometheus`. Look at each picture before you commit it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash, X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { stripVTControlCharacters } from 'node:util';
import { limitTime } from '../base/exec.ts';
import { pause } from '../base/time.ts';
import { runCommand } from './command.ts';
import { escapeXML, pictureDashboard } from './dashboardpicture.ts';
import { SETTINGS, Shell } from './demolines.ts';
import { waitFor } from './wait.ts';

const ROOT = join(import.meta.dirname, '..');
const DEMO = join(ROOT, '.berth', 'demo');
const PICTURES = 'docs/pictures';
/** Largest size of a picture. Each clone of the repository and each reader of the README loads them. */
const PICTURE_BYTES = 150_000;
/** The command from its sources, which needs no `make cli`. */
const COMMAND = `berth() { node cli/main.ts "$@"; }; stty cols 100 rows 50`;

/** Returns the content of a file of the demo. */
async function demoFile(name: string): Promise<string> {
  return (await readFile(join(DEMO, name), 'utf8')).trim();
}

/** Types a line, and returns its output. @throws Error when it fails. */
async function typeLine(shell: Shell, line: string): Promise<string> {
  const { code, shown } = await shell.type(line);
  if (code !== 0) {
    throw new Error(`${line}: ${shown}`);
  }
  return shown;
}

// The terminal

const RECORDED = [
  'berth vm list',
  'berth vm deploy sample --image demo-guest --cpu 1 --memory 256Mi',
  'berth vm exec hello -- uname -sr',
  'berth vm get hello',
  'berth image list',
];
/** Longest time in seconds that the recording shows of a command. Nobody wants to watch an emulated guest on a busy machine. */
const WAIT_SECONDS = 2;
/** Time in seconds in which the recording types a command, and until the next one. */
const TYPING_SECONDS = 1;
const FONT_SIZE = 14;
const LINE_HEIGHT = 19;
const MARGIN = 18;
/** Width of 100 characters. */
const WIDTH = 880;

/** Types the commands and draws what the terminal showed. Each line appears after the time that its command took. */
async function recordTerminal(shell: Shell): Promise<string> {
  const rows: { text: string; kind: 'typed' | 'shown'; seconds: number }[] = [];
  let seconds = 0;
  for (const command of RECORDED) {
    const began = performance.now();
    const shown = await typeLine(shell, command);
    rows.push({ text: `$ ${command}`, kind: 'typed', seconds });
    seconds += TYPING_SECONDS / 2 + Math.min((performance.now() - began) / 1000, WAIT_SECONDS);
    const lines = shown.trimEnd().split('\n').map(visibleText);
    rows.push(...lines.map((text) => ({ text, kind: 'shown' as const, seconds })));
    rows.push({ text: '', kind: 'shown', seconds });
    seconds += TYPING_SECONDS;
  }
  const height = 2 * MARGIN + (rows.length - 1) * LINE_HEIGHT;
  const texts = rows.map(({ text, kind, seconds: delay }, row) => {
    const y = MARGIN + FONT_SIZE + row * LINE_HEIGHT;
    return `<text class="${kind}" x="${MARGIN}" y="${y}" style="animation-delay:${delay.toFixed(1)}s">${escapeXML(text)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}">
<title>A recording of the command berth</title>
<style>
text { font: ${FONT_SIZE}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace; fill: #e6edf3; white-space: pre }
.typed { fill: #7ee787 }
@media (prefers-reduced-motion: no-preference) { text { animation: appear 1ms backwards } }
@keyframes appear { from { opacity: 0 } }
</style>
<rect width="${WIDTH}" height="${height}" rx="8" fill="#0d1117"/>
${texts.join('\n')}
</svg>
`;
}

/** Returns what a line of a terminal shows at its end. The command writes its progress over itself. */
function visibleText(line: string): string {
  return stripVTControlCharacters(line.split('\r\u001b[K').at(-1) ?? '').trimEnd();
}

// The screen of the guest

/** Lines for the login on the screen. They need no Shift key. */
const SCREEN_LINES = ['root', 'uname -a', 'free -m', 'ls /'];
const VNC_PORT = 5900;
/** What a viewer sends first: its version, the choice of no password, and that others may look too. The server needs no other answer. */
const GREETING = Buffer.from('RFB 003.008\n\u0001\u0001', 'latin1');
const KEY_EVENT = 4;
const ENTER_KEY = 0xff_0d;
/** Time between two keys: the speed of a good typist, and enough for the keyboard buffer of an emulated guest. */
const KEY_MILLISECONDS = 100;
const SCREEN_PROMPT = /hello:~#/g;
/** Time limit of one line. An emulated guest on a busy machine needs seconds. */
const SCREEN_MILLISECONDS = 120_000;

/** Types the lines over VNC, and has the host make the picture. */
async function pictureScreen(shell: Shell): Promise<void> {
  await typeLine(shell, `kubectl port-forward pod/hello ${VNC_PORT}:vnc & forwarding=$!`);
  const socket = connect(VNC_PORT, '127.0.0.1').resume();
  try {
    socket.write(GREETING);
    for (const [index, line] of SCREEN_LINES.entries()) {
      await typeKeys(socket, line);
      await waitFor(
        `the answer to ${line} on the screen`,
        async () => {
          const text = await typeLine(shell, 'kubectl exec hello -- cat /dev/vcs1');
          return (text.match(SCREEN_PROMPT) ?? []).length > index;
        },
        { deadlineMilliseconds: SCREEN_MILLISECONDS },
      );
    }
    await typeLine(shell, `berth vm screenshot hello ${PICTURES}/screen.png`);
    await typeKeys(socket, 'exit');
  } finally {
    socket.destroy();
    // The dashboard's lines wait for all that the shell has in the background.
    await typeLine(shell, 'kill $forwarding && { wait $forwarding || true; }');
  }
}

async function typeKeys(socket: Writable, line: string): Promise<void> {
  for (const key of [...Buffer.from(line), ENTER_KEY]) {
    for (const isDown of [1, 0]) {
      const event = Buffer.alloc(8);
      event.writeUInt8(KEY_EVENT, 0);
      event.writeUInt8(isDown, 1);
      event.writeUInt32BE(key, 4);
      socket.write(event);
      await pause(KEY_MILLISECONDS / 2);
    }
  }
}

// The page of the HTTP API

const PAGE = { width: 1120, height: 1020 };
/** Time limit of the whole browser. */
const BROWSER_MILLISECONDS = 900_000;
/** Time limit of one step. A deployment takes some seconds, and minutes on a busy machine. */
const STEP_MILLISECONDS = 300_000;

/** A part of the page, in pixels. */
interface Clip {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** A page in Chromium, steered by the Chrome DevTools Protocol over the pipes 3 and 4. */
class Page {
  readonly #child: ChildProcess;
  readonly #answers = new Map<number, { resolve: (result: never) => void; reject: (error: Error) => void }>();
  #last = 0;
  #session: string | undefined;

  private constructor(child: ChildProcess) {
    this.#child = child;
    let text = '';
    (child.stdio[4] as Readable).setEncoding('utf8').on('data', (piece: string) => {
      const messages = (text + piece).split('\0');
      text = messages.pop() ?? '';
      messages.forEach((message) => this.#receive(message));
    });
    // The child says below why it takes no message.
    (child.stdio[3] as Writable).on('error', () => undefined);
    child
      .once('error', ({ message }) => this.#fail(`${message}. Install it with: apt-get install chromium`))
      .once('exit', () => this.#fail('Chromium ended'));
  }

  /** Opens an address. The browser trusts the certificate with this pin beside the usual ones. */
  static async open(address: string, { profile, pin }: { profile: string; pin: string }): Promise<Page> {
    const flags = [
      '--headless=new',
      '--hide-scrollbars',
      '--remote-debugging-pipe',
      `--user-data-dir=${profile}`,
      `--ignore-certificate-errors-spki-list=${pin}`,
      ...(process.getuid?.() === 0 ? ['--no-sandbox'] : []),
    ];
    const child = spawn('chromium', flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    limitTime(child, BROWSER_MILLISECONDS);
    const page = new Page(child);
    const { targetId } = await page.#send<{ targetId: string }>('Target.createTarget', {
      url: 'about:blank',
    });
    const target = { targetId, flatten: true };
    page.#session = (await page.#send<{ sessionId: string }>('Target.attachToTarget', target)).sessionId;
    await page.#send('Emulation.setDeviceMetricsOverride', { ...PAGE, deviceScaleFactor: 1, mobile: false });
    await page.#send('Page.navigate', { url: address });
    return page;
  }

  /** Ends the browser. It writes into its profile until then. */
  async close(): Promise<void> {
    const ended = once(this.#child, 'exit');
    this.#child.kill();
    await ended;
  }

  /** Returns the value of an expression once it is there. */
  async get<T>(expression: string): Promise<T> {
    return await waitFor(
      expression,
      async () => {
        const { result } = await this.#send<{ result: { value?: T } }>('Runtime.evaluate', {
          expression,
          returnByValue: true,
        });
        return result.value ?? undefined;
      },
      { deadlineMilliseconds: STEP_MILLISECONDS },
    );
  }

  async click(selector: string): Promise<void> {
    const element = `document.querySelector('${selector}')`;
    await this.get(`${element} === null ? undefined : (${element}.click(), true)`);
  }

  /** Replaces the text of a field. */
  async fill(selector: string, text: string): Promise<void> {
    const element = `document.querySelector('${selector}')`;
    await this.get(`${element} === null ? undefined : (${element}.select(), true)`);
    await this.#send('Input.insertText', { text });
  }

  /** Writes a part of the page as PNG. */
  async picture(file: string, clip: Clip): Promise<void> {
    const { data } = await this.#send<{ data: string }>('Page.captureScreenshot', {
      clip: { ...clip, scale: 1 },
      captureBeyondViewport: true,
    });
    await writeFile(join(ROOT, PICTURES, file), Buffer.from(data, 'base64'));
  }

  async #send<T>(method: string, parameters: object = {}): Promise<T> {
    this.#last += 1;
    const message = { id: this.#last, method, params: parameters, sessionId: this.#session };
    return await new Promise<T>((resolve, reject) => {
      this.#answers.set(message.id, { resolve, reject });
      (this.#child.stdio[3] as Writable).write(`${JSON.stringify(message)}\0`);
    });
  }

  #receive(text: string): void {
    const { id, result, error } = JSON.parse(text) as {
      id?: number;
      result: never;
      error?: { message: string };
    };
    const waiting = this.#answers.get(id ?? 0);
    this.#answers.delete(id ?? 0);
    if (error === undefined) {
      waiting?.resolve(result);
    } else {
      waiting?.reject(new Error(error.message));
    }
  }

  #fail(message: string): void {
    this.#answers.forEach(({ reject }) => reject(new Error(message)));
  }
}

/** Opens the page of the demo in a browser with a profile of its own. */
async function visitPage(): Promise<void> {
  const profile = await mkdtemp(join(tmpdir(), 'berth-pictures-'));
  try {
    const { publicKey } = new X509Certificate(await demoFile('server.crt'));
    const key = publicKey.export({ type: 'spki', format: 'der' });
    const pin = createHash('sha256').update(key).digest('base64');
    const page = await Page.open(await demoFile('server.url'), { profile, pin });
    try {
      await picturePage(page);
    } finally {
      await page.close();
    }
  } finally {
    await rm(profile, { recursive: true });
  }
}

/** Makes the pictures of the page, and tries its examples out. */
async function picturePage(page: Page): Promise<void> {
  await page.get(`document.querySelector('.opblock-tag')?.id`);
  await page.picture('swagger.png', { x: 0, y: 0, ...PAGE });
  await authorize(page);
  await page.click('#operations-tag-VMs');
  await tryOut(page, 'getVms', '200');
  await tryOut(page, 'postVms', '200');
  await page.picture('swagger-deploy.png', await clipOf(page, 'postVms'));
  await tryOut(page, 'deleteVmsByName', '200');
  const refused = await tryOut(page, 'postVms', '422', '{"name": "sample", "imgae": "demo-guest"}');
  if (!refused.includes('did you mean image?')) {
    throw new Error(`The refusal names no similar field: ${refused}`);
  }
}

async function authorize(page: Page): Promise<void> {
  await page.click('.btn.authorize');
  await page.fill('.auth-container input', await demoFile('tokens/dev'));
  await page.click('.auth-btn-wrapper .authorize');
  await page.click('.auth-btn-wrapper .btn-done');
}

/**
 * Sends an operation on VMs with the example of the page, or with this body. Returns the body of the answer.
 * @throws Error when the page shows another code, or calls the answer undocumented.
 */
async function tryOut(page: Page, operation: string, expected: string, body?: string): Promise<string> {
  const block = `#operations-VMs-${operation}`;
  const answer = `document.querySelector('${block} .live-responses-table tr.response')`;
  if ((await page.get<number>(`document.querySelectorAll('${block}.is-open').length`)) === 0) {
    await page.click(`${block} .opblock-summary-control`);
    await page.click(`${block} .try-out__btn`);
  }
  if (body !== undefined) {
    await page.click(`${block} .btn-clear`);
    await page.fill(`${block} textarea`, body);
  }
  await page.click(`${block} .execute`);
  const code = await page.get<string>(`${answer}?.querySelector('.response-col_status').innerText.trim()`);
  const text = await page.get<string>(`${answer}.querySelector('.response-col_description').innerText`);
  process.stdout.write(`Try it out: ${operation} answers ${code}\n`);
  if (code !== expected) {
    throw new Error(`${operation} answers ${code} and not ${expected}: ${text}`);
  }
  // The command for curl contains the token.
  await page.get(`document.querySelectorAll('.curl span').forEach((part) => {
    part.textContent = part.textContent.replace(/Bearer [^']+/, 'Bearer TOKEN');
  }) ?? true`);
  return text;
}

/** Returns the part of the page from the body of a request to the body of its answer. */
async function clipOf(page: Page, operation: string): Promise<Clip> {
  const block = `document.querySelector('#operations-VMs-${operation}')`;
  return await page.get<Clip>(`(() => {
    const { x, y, width } = ${block}.querySelector('.opblock-section-request-body').getBoundingClientRect();
    const { bottom } = ${block}.querySelector('.live-responses-table .highlight-code').getBoundingClientRect();
    return { x: x + scrollX, y: y + scrollY, width, height: bottom - y };
  })()`);
}

async function main(): Promise<void> {
  const shell = new Shell();
  try {
    await typeLine(shell, SETTINGS.replaceAll('\n', '; '));
    await typeLine(shell, `. .berth/demo/env; ${COMMAND}; mkdir -p ${PICTURES}`);
    await writeFile(join(ROOT, PICTURES, 'terminal.svg'), await recordTerminal(shell));
    await typeLine(shell, 'berth vm delete sample');
    await pictureScreen(shell);
    await pictureDashboard(
      async (line) => await typeLine(shell, line),
      DEMO,
      join(ROOT, PICTURES, 'dashboard.svg'),
    );
  } finally {
    await shell.end();
  }
  await visitPage();
  for (const name of ['terminal.svg', 'screen.png', 'dashboard.svg', 'swagger.png', 'swagger-deploy.png']) {
    const { size } = await stat(join(ROOT, PICTURES, name));
    process.stdout.write(`${PICTURES}/${name}: ${size} bytes\n`);
    if (size > PICTURE_BYTES) {
      throw new Error(`${name} has ${size} bytes, and ${PICTURE_BYTES} are allowed`);
    }
  }
}

await runCommand(main);
