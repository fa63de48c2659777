/** Routes of the OpenAPI document and of a page that shows it. Everybody is allowed to read both. */
import { createReadStream } from 'node:fs';
import type { FastifyReply, RouteShorthandOptions } from 'fastify';
import type { App } from '../http/app.ts';
import { Downloads } from './downloads.ts';
import { FILES, HEADERS, KEEP_SECONDS, pageHTML, pageScript, pathOf, START } from './page.ts';

/** Path of the page. The path of the OpenAPI document is `json` below this path. */
const PAGE_PATH = '/api/v1/swagger';
const PAGE = { title: 'Berth HTTP API', path: PAGE_PATH, document: `${PAGE_PATH}/json` };

/** Adds the routes. @throws Error when the files of the page are missing. */
export function addDocumentationRoutes(app: App): void {
  const downloads = new Downloads();
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
