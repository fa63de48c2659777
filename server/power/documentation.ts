/** Serves the OpenAPI document of the power API and a page that shows it. Everybody may read both. */
import { createReadStream } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { HttpError } from '../../kube/serving/httperror.ts';
import { reply } from '../../kube/serving/httpserver.ts';
import { Downloads } from '../documentation/downloads.ts';
import { FILES, HEADERS, KEEP_SECONDS, pageHTML, pageScript, pathOf, START } from '../documentation/page.ts';
import { powerDocument } from './openapi.ts';
import { POWER_PATH } from './path.ts';

const PAGE = {
  title: 'Berth power API',
  path: `${POWER_PATH}/docs`,
  document: `${POWER_PATH}/openapi.json`,
};

export class PowerDocumentation {
  readonly #downloads = new Downloads();
  readonly #texts: Readonly<Record<string, { readonly text: string; readonly type: string }>> = {
    [PAGE.document]: { text: JSON.stringify(powerDocument()), type: 'application/json' },
    [PAGE.path]: { text: pageHTML(PAGE), type: 'text/html; charset=utf-8' },
    [`${PAGE.path}/${START.name}`]: { text: pageScript(PAGE), type: START.type },
  };

  /**
   * Answers a request for the document, the page or a file of it. Returns false if the path is another one.
   *
   * @throws HttpError 503 when too many clients load the page.
   */
  async answer(parts: readonly string[], response: ServerResponse): Promise<boolean> {
    const path = `/${parts.join('/')}`;
    const known = this.#texts[path];
    if (known !== undefined) {
      this.#downloads.begin(response);
      setHeaders(response);
      reply(response, 200, known.text, known.type);
      return true;
    }
    const file = path.startsWith(`${PAGE.path}/`) ? path.slice(PAGE.path.length + 1) : '';
    const type = FILES[file];
    if (type === undefined) {
      if (path.startsWith(`${PAGE.path}/`)) {
        throw new HttpError(404, `The page has no such file. The page is ${PAGE.path}`);
      }
      return false;
    }
    this.#downloads.begin(response);
    setHeaders(response);
    // The file is large and the same for all. Everything else of this API is new with each request.
    response.writeHead(200, { 'content-type': type, 'cache-control': `max-age=${KEEP_SECONDS}` });
    // A client that goes away ends the reading.
    await pipeline(createReadStream(pathOf(file)), response).catch(() => response.destroy());
    return true;
  }
}

function setHeaders(response: ServerResponse): void {
  for (const [name, value] of Object.entries(HEADERS)) {
    response.setHeader(name, value);
  }
}
