/** The page that shows the OpenAPI document in a browser: Swagger UI and a script that starts it. */
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

/** Path of the page. The path of the OpenAPI document is `json` below this path. */
export const PAGE_PATH = '/api/v1/swagger';

/**
 * Headers of the page and of its files. The page can load files only from this server, and can send requests only to this server. No other
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

/** Script that starts the page. The token that a user enters stays in the memory of the page and is not stored in the browser. */
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
 * Returns the path of a file of the npm package `swagger-ui-dist`. Node.js finds the folder of the package by its name. This also works in
 * the container image, which contains this folder beside the bundled program.
 * @throws Error when the package is not installed.
 */
export function pathOf(file: string): string {
  return join(dirname(require.resolve('swagger-ui-dist/package.json')), file);
}
