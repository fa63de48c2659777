/** The page that shows the OpenAPI document in a browser: Swagger UI, with a script of ours that starts it. */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

const SCRIPT_TYPE = 'text/javascript; charset=utf-8';

/** Files of the package that browsers can load, with their content types. The licence of the script is one of them. */
export const FILES: Readonly<Record<string, string>> = {
  'swagger-ui.css': 'text/css; charset=utf-8',
  'swagger-ui-bundle.js': SCRIPT_TYPE,
  'swagger-ui-bundle.js.LICENSE.txt': 'text/plain; charset=utf-8',
};

export const START = { name: 'start.js', type: SCRIPT_TYPE };

/** Path of the page. The document is at `json` below it. */
export const PAGE_PATH = '/api/v1/swagger';

/**
 * Headers of the page and of its files. They allow the page to load files only from this server, and to send requests only to it. No other
 * site can show the page in a frame. The pictures are data URLs in the style sheet.
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

export const HTML = `<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>Berth HTTP API</title>
    <link rel="icon" href="data:,">
    <link rel="stylesheet" href="${PAGE_PATH}/swagger-ui.css">
    <script defer src="${PAGE_PATH}/swagger-ui-bundle.js"></script>
    <script defer src="${PAGE_PATH}/${START.name}"></script>
  </head>
  <body>
    <noscript>This page needs JavaScript. The document is at ${PAGE_PATH}/json.</noscript>
    <div id="page"></div>
  </body>
</html>
`;

/** The token stays in the memory of the page. */
export const SCRIPT = `SwaggerUIBundle({
  url: '${PAGE_PATH}/json',
  dom_id: '#page',
  docExpansion: 'none',
  persistAuthorization: false,
  validatorUrl: null,
});
`;

const require = createRequire(import.meta.url);

/**
 * Returns the path of a file of the package. The container image has the package in a folder beside the bundle, so the search by name works
 * there, too.
 * @throws Error when the package is not installed.
 */
export function pathOf(file: string): string {
  return join(dirname(require.resolve('swagger-ui-dist/package.json')), file);
}
