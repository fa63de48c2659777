/** The page with the documentation of the HTTP API, and the files that it needs. */
import { createReadStream } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import type { FastifyReply, RouteShorthandOptions } from 'fastify';
import type { App } from './http/app.ts';
import { limitReading } from './http/answers.ts';
import { SourcePlaces } from './http/places.ts';

/** Path of the page. The path of the OpenAPI document is `json` below this path. */
const PAGE_PATH = '/api/v1/swagger';
const PAGE = { title: 'Berth HTTP API', path: PAGE_PATH, document: `${PAGE_PATH}/json` };

/** Adds the routes. @throws Error when the files of the page are missing. */
export function addDocumentationRoutes(app: App): void {
  const downloads = new FileDownloads();
  const schema = { hide: true, security: [] };
  const limited: RouteShorthandOptions = {
    schema,
    onRequest: (_request, reply, next) => {
      downloads.begin(reply.raw);
      next();
    },
  };
  // The text of the document is computed only once, because clients without a token can request it often.
  let document: string | undefined;
  app.get(PAGE.document, limited, (_request, reply) => {
    document ??= JSON.stringify(app.swagger());
    return reply.type('application/json; charset=utf-8').send(document);
  });
  // People who open the address of the server, or that of its API, want to see what it offers.
  for (const path of ['/', '/api/v1']) {
    app.get(path, { schema }, (_request, reply) => reply.redirect(PAGE_PATH));
  }
  app.get(PAGE_PATH, { schema }, (_request, reply) =>
    secured(reply, 'text/html; charset=utf-8').header('cache-control', 'no-cache').send(pageHTML(PAGE)),
  );
  app.get(`${PAGE_PATH}/${START.name}`, { schema }, (_request, reply) =>
    secured(reply, START.type).header('cache-control', `max-age=${KEEP_SECONDS}`).send(pageScript(PAGE)),
  );
  for (const [file, type] of Object.entries(FILES)) {
    const path = pathOf(file);
    app.get(`${PAGE_PATH}/${file}`, limited, (_request, reply) =>
      secured(reply, type).header('cache-control', `max-age=${KEEP_SECONDS}`).send(createReadStream(path)),
    );
  }
}

function secured(reply: FastifyReply, type: string): FastifyReply {
  return reply.headers(HEADERS).type(type);
}

/** Largest number of answers at the same time. A browser loads three files for a page, and needs their places only for moments. */
const DOWNLOADS = 32;
/** Time limit of one answer in milliseconds. The largest file has 1.7 MB, which a client with 0.5 Mbit/s gets in this time. */
const DOWNLOAD_MILLISECONDS = 30_000;

/** Answers under way whose clients nobody knows. Each keeps a file in memory until its client has read it. */
export class FileDownloads {
  readonly #places = new SourcePlaces(DOWNLOADS);

  /**
   * Counts an answer until it is sent or its connection is closed. If too many are under way, this one displaces another one, whose
   * connection is closed.
   */
  begin(response: ServerResponse): void {
    const release = this.#places.take(response.socket, () => response.destroy());
    limitReading(response, DOWNLOAD_MILLISECONDS, release);
  }
}

const SCRIPT_TYPE = 'text/javascript; charset=utf-8';

/**
 * Files of the npm package `swagger-ui-dist` that browsers can load, with their content types. One of the files is the licence of the
 * script.
 */
export const FILES: Readonly<Record<string, string>> = {
  'swagger-ui.css': 'text/css; charset=utf-8',
  'swagger-ui-bundle.js': SCRIPT_TYPE,
  'swagger-ui-bundle.js.LICENSE.txt': 'text/plain; charset=utf-8',
};

export const START = { name: 'start.js', type: SCRIPT_TYPE };

/** Time in seconds for which browsers keep the files of a page. The files change only with a new release of Berth. */
export const KEEP_SECONDS = 3_600;

/**
 * Headers of a page and of its files. A page can load files only from this server, and can send requests only to this server. No other
 * site can show the page in a frame. Data URLs are allowed for pictures, because the style sheet contains some.
 */
export const HEADERS: Readonly<Record<string, string>> = {
  'content-security-policy': [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; '),
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
};

/** A page that shows an OpenAPI document. */
interface DocumentPage {
  readonly title: string;
  /** Path of the page. Its files are below this path. */
  readonly path: string;
  /** Path of the OpenAPI document. */
  readonly document: string;
}

/** Returns the HTML of a page. */
export function pageHTML({ title, path, document }: DocumentPage): string {
  return `<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>${title}</title>
    <link rel="icon" href="data:,">
    <link rel="stylesheet" href="${path}/swagger-ui.css">
    <script defer src="${path}/swagger-ui-bundle.js"></script>
    <script defer src="${path}/${START.name}"></script>
  </head>
  <body>
    <noscript>This page needs JavaScript. The document is at ${document}.</noscript>
    <div id="page"></div>
  </body>
</html>
`;
}

/**
 * Returns the script that starts a page. The token that a user enters stays in the memory of the page and is not stored in the browser.
 */
export function pageScript({ document }: Pick<DocumentPage, 'document'>): string {
  return `SwaggerUIBundle({
  url: '${document}',
  dom_id: '#page',
  docExpansion: 'none',
  persistAuthorization: false,
  validatorUrl: null,
});
`;
}

const require = createRequire(import.meta.url);

/**
 * Returns the path of a file of the npm package `swagger-ui-dist`. Node.js finds the folder of the package by its name. This also works in
 * the container image, which contains this folder beside the bundled program.
 * @throws Error when the package is not installed.
 */
export function pathOf(file: string): string {
  return join(dirname(require.resolve('swagger-ui-dist/package.json')), file);
}
