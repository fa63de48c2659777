/**
 * `make pictures` makes the pictures of README.md and of the pages, on the running demo: `berth` in a terminal, the screen of the guest with
 * keys that were typed over VNC, the dashboard, the console, and the page of the HTTP API in a browser. It sends the page's own examples by "Try it out",
 * and fails if an answer is not the expected one. It needs Debian's packages `chromium` and `prometheus`. Look at each picture before you commit it.
 */
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import type { Page } from 'playwright-core';
import { isMissing } from '../base/errors.ts';
import { ServerPages } from './browser.ts';
import { runCommand } from './command.ts';
import { pictureFleet, pictureScreen } from './consolepictures.ts';
import { escapeXML, pictureDashboard } from './dashboardpicture.ts';
import { SETTINGS, Shell } from './demolines.ts';

const ROOT = join(import.meta.dirname, '..');
const DEMO = join(ROOT, '.berth', 'demo');
const PICTURES = 'docs/pictures';
/** Largest size of a picture. Each clone of the repository and each reader of the README loads them. */
const PICTURE_BYTES = 150_000;
/** The command from its sources, which needs no `make cli`. */
const COMMAND = `berth() { node cli/main.ts "$@"; }; stty cols 100 rows 50`;

/** Returns the content of a file of the demo. @throws Error when no demo runs. */
async function demoFile(name: string): Promise<string> {
  try {
    return (await readFile(join(DEMO, name), 'utf8')).trim();
  } catch (error) {
    throw isMissing(error)
      ? new Error('the pictures show the demo, and none runs here. Run: make demo', { cause: error })
      : error;
  }
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

// The page of the HTTP API

const VIEWPORT = { width: 1120, height: 1020 };
/** Time limit of one step. A deployment takes some seconds, and minutes on a busy machine. */
const STEP_MILLISECONDS = 300_000;

/** Makes the pictures of the page, and tries its examples out. */
async function picturePage(page: Page): Promise<void> {
  page.setDefaultTimeout(STEP_MILLISECONDS);
  await page.locator('.opblock-tag').first().waitFor();
  await page.screenshot({ path: join(ROOT, PICTURES, 'swagger.png') });
  await authorize(page);
  await page.locator('#operations-tag-VMs').click();
  await tryOut(page, 'getVms', '200');
  await tryOut(page, 'postVms', '200');
  const clip = await clipOf(page, 'postVms');
  await page.screenshot({ path: join(ROOT, PICTURES, 'swagger-deploy.png'), clip, fullPage: true });
  await tryOut(page, 'deleteVmsByName', '200');
  const refused = await tryOut(page, 'postVms', '422', '{"name": "sample", "imgae": "demo-guest"}');
  if (!refused.includes('did you mean image?')) {
    throw new Error(`The refusal names no similar field: ${refused}`);
  }
}

async function authorize(page: Page): Promise<void> {
  await page.locator('.btn.authorize').click();
  await page.locator('.auth-container input').fill(await demoFile('tokens/dev'));
  await page.locator('.auth-btn-wrapper .authorize').click();
  await page.locator('.auth-btn-wrapper .btn-done').click();
}

/**
 * Sends an operation on VMs with the example of the page, or with this body. Returns the body of the answer.
 * @throws Error when the page shows another code, or calls the answer undocumented.
 */
async function tryOut(page: Page, operation: string, expected: string, body?: string): Promise<string> {
  const block = page.locator(`#operations-VMs-${operation}`);
  if ((await page.locator(`#operations-VMs-${operation}.is-open`).count()) === 0) {
    await block.locator('.opblock-summary-control').click();
    await block.locator('.try-out__btn').click();
  }
  if (body !== undefined) {
    await block.locator('.btn-clear').click();
    await block.locator('textarea').fill(body);
  }
  await block.locator('.execute').click();
  const answer = block.locator('.live-responses-table tr.response');
  const code = (await answer.locator('.response-col_status').innerText()).trim();
  const text = await answer.locator('.response-col_description').innerText();
  process.stdout.write(`Try it out: ${operation} answers ${code}\n`);
  if (code !== expected) {
    throw new Error(`${operation} answers ${code} and not ${expected}: ${text}`);
  }
  // The command for curl contains the token.
  await page.evaluate(`document.querySelectorAll('.curl span').forEach((part) => {
    part.textContent = part.textContent.replace(/Bearer [^']+/, 'Bearer TOKEN');
  })`);
  return text;
}

/** A part of the page, in pixels. */
interface Clip {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** Returns the part of the page from the body of a request to the body of its answer. */
async function clipOf(page: Page, operation: string): Promise<Clip> {
  const block = `document.querySelector('#operations-VMs-${operation}')`;
  return await page.evaluate<Clip>(`(() => {
    const { x, y, width } = ${block}.querySelector('.opblock-section-request-body').getBoundingClientRect();
    const { bottom } = ${block}.querySelector('.live-responses-table .highlight-code').getBoundingClientRect();
    return { x: x + scrollX, y: y + scrollY, width, height: bottom - y };
  })()`);
}

async function main(): Promise<void> {
  const folder = join(ROOT, PICTURES);
  const pages = await ServerPages.launch(await demoFile('server.url'));
  const shell = new Shell();
  try {
    await typeLine(shell, SETTINGS.replaceAll('\n', '; '));
    await typeLine(shell, `. .berth/demo/env; ${COMMAND}; mkdir -p ${PICTURES}`);
    await writeFile(join(folder, 'terminal.svg'), await recordTerminal(shell));
    await typeLine(shell, 'berth vm delete sample');
    await pictureScreen(pages, {
      token: await demoFile('tokens/dev'),
      folder,
      whenTyped: async () => {
        await typeLine(shell, `berth vm screenshot hello ${PICTURES}/screen.png`);
      },
    });
    await pictureDashboard(async (line) => await typeLine(shell, line), DEMO, join(folder, 'dashboard.svg'));
    await picturePage(await pages.visit('/', { viewport: VIEWPORT }));
    await pictureFleet(pages, { token: await demoFile('tokens/admin'), folder });
  } finally {
    await shell.end();
    await pages.close();
  }
  for (const name of await readdir(folder)) {
    const { size } = await stat(join(folder, name));
    process.stdout.write(`${PICTURES}/${name}: ${size} bytes\n`);
    if (size > PICTURE_BYTES) {
      throw new Error(`${name} has ${size} bytes, and ${PICTURE_BYTES} are allowed`);
    }
  }
}

await runCommand(main);
