/** Pages that show an OpenAPI document in a browser: Swagger UI and a script that starts it. */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

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
export interface DocumentPage {
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
