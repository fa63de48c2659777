/** Routes of the OpenAPI document and of a page that shows it. Everybody is allowed to read both. */
import { createReadStream } from 'node:fs';
import type { FastifyReply, RouteShorthandOptions } from 'fastify';
import type { App } from '../http/app.ts';
import { Downloads } from './downloads.ts';
import { FILES, HEADERS, HTML, PAGE_PATH, pathOf, SCRIPT, START } from './page.ts';

/** Time in seconds for which browsers keep the files of the page. The files change only with a new release of Berth. */
const KEEP_SECONDS = 3_600;

/** Adds the routes. @throws Error when the files of the page are missing. */
export function addDocumentationRoutes(app: App): void {
  const downloads = new Downloads();
  const schema = { hide: true, security: [] };
  const limited: RouteShorthandOptions = {
    schema,
    onRequest: (_request, reply, next) => {
      downloads.begin(reply);
      next();
    },
  };
  // The text of the document is computed only once, because clients without a token can request it often.
  let document: string | undefined;
  app.get(`${PAGE_PATH}/json`, limited, (_request, reply) => {
    document ??= JSON.stringify(app.swagger());
    return reply.type('application/json; charset=utf-8').send(document);
  });
  app.get(PAGE_PATH, { schema }, (_request, reply) =>
    secured(reply, 'text/html; charset=utf-8').header('cache-control', 'no-cache').send(HTML),
  );
  app.get(`${PAGE_PATH}/${START.name}`, { schema }, (_request, reply) =>
    secured(reply, START.type).header('cache-control', `max-age=${KEEP_SECONDS}`).send(SCRIPT),
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
