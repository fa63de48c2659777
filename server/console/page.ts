/** The page of the console: its HTML, and the files of its bundle. */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { FileDownloads, HEADERS, KEEP_SECONDS, START } from '../documentation.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';

const CONSOLE_PATH = '/console/';

/** Files of the bundle, with their content types. */
const FILES = {
  'console.js': START.type,
  'style.css': 'text/css; charset=utf-8',
  'novnc.js': START.type,
  'novnc.LICENSE.txt': 'text/plain; charset=utf-8',
} as const;
type File = keyof typeof FILES;

/** Folder of the bundle: beside the bundled server, or in `dist/` when the server runs from its sources. */
const FOLDER = import.meta.filename.endsWith('.ts')
  ? join(import.meta.dirname, '..', '..', 'dist', 'console')
  : join(import.meta.dirname, 'console');

/** Headers of the page. In addition to the rules of the other pages, no text becomes HTML, and no window of another site can reach it. */
const PAGE_HEADERS = {
  ...HEADERS,
  'content-security-policy': `${HEADERS['content-security-policy']}; require-trusted-types-for 'script'`,
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
} as const;

/** Adds the routes of the page. Everybody gets the page, because it has no data. */
export function addConsolePage(app: App): void {
  const downloads = new FileDownloads();
  const options = {
    schema: { hide: true, security: [] },
    onRequest: (
      _request: unknown,
      reply: { raw: Parameters<FileDownloads['begin']>[0] },
      next: () => void,
    ) => {
      downloads.begin(reply.raw);
      next();
    },
  };
  let bundle: Bundle | undefined;
  const read = async (): Promise<Bundle> => (bundle ??= await readBundle());
  app.get(CONSOLE_PATH, options, async (_request, reply) => {
    const { html } = await read();
    return await reply
      .headers(PAGE_HEADERS)
      .type('text/html; charset=utf-8')
      .header('cache-control', 'no-cache')
      .send(html);
  });
  for (const [file, type] of Object.entries(FILES)) {
    app.get(`${CONSOLE_PATH}${file}`, options, async (_request, reply) => {
      const bundled = await read();
      return await reply
        .headers(PAGE_HEADERS)
        .type(type)
        .header('cache-control', `max-age=${KEEP_SECONDS}`)
        .send(bundled.contents[file as File]);
    });
  }
}

type Contents = Readonly<Record<File, Buffer>>;

interface Bundle {
  readonly contents: Contents;
  /** HTML of the page. It is made once, because clients without a token can request it often. */
  readonly html: string;
}

/** Reads the files of the bundle, and makes the HTML. @throws StatusError 501 when nobody has made the bundle. */
async function readBundle(): Promise<Bundle> {
  const names = Object.keys(FILES) as File[];
  const reads = names.map(async (file) => await readFile(join(FOLDER, file)));
  const found = await undefinedIf(isMissing, Promise.all(reads));
  if (found === undefined) {
    throw new StatusError(
      501,
      'The files of the console are missing here. The command make bundle makes them',
    );
  }
  const contents = Object.fromEntries(names.map((file, index) => [file, found[index]])) as Contents;
  return { contents, html: pageHTML(contents) };
}

/** Returns the HTML. The addresses of the files contain their digests, so that a browser never mixes files of two releases. */
function pageHTML(contents: Contents): string {
  const address = (file: File) =>
    `${CONSOLE_PATH}${file}?v=${createHash('sha256').update(contents[file]).digest('hex').slice(0, 16)}`;
  return `<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <title>Berth</title>
    <link rel="icon" href="data:,">
    <link rel="stylesheet" href="${address('style.css')}">
    <script type="module" src="${address('console.js')}"></script>
  </head>
  <body>
    <noscript>This page needs JavaScript.</noscript>
    <div id="page" data-novnc="${address('novnc.js')}"></div>
  </body>
</html>
`;
}
