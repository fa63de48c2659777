/**
 * Writes the OpenAPI documents into `docs/reference/`: `openapi.json` of the HTTP API, from its routes, and `power-openapi.json` of the power
 * API.
 *
 *   openapi.ts            writes the files
 *   openapi.ts --check    exits 1 when a file is not current
 */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { pino } from 'pino';
import { loadConfig } from '../server/config.ts';
import { powerDocument } from '../server/power/documentation.ts';
import { assemble } from '../server/server.ts';
import { runCommand } from './command.ts';

const FOLDER = join(import.meta.dirname, '..', 'docs', 'reference');

/** Returns the document of the HTTP API. No connection to the named API server is opened. */
async function httpDocument(): Promise<object> {
  const { app, close } = await assemble({
    connection: { server: 'https://127.0.0.1' },
    config: loadConfig(undefined),
    logger: pino({ level: 'silent' }),
  });
  const document = app.swagger();
  await close();
  return document;
}

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { check: { type: 'boolean', default: false } } });
  const documents = { 'openapi.json': await httpDocument(), 'power-openapi.json': powerDocument() };
  let code = 0;
  for (const [name, document] of Object.entries(documents)) {
    const file = join(FOLDER, name);
    const text = `${JSON.stringify(document, undefined, 2)}\n`;
    if (!values.check) {
      await writeFile(file, text);
    } else if ((await readFile(file, 'utf8')) !== text) {
      console.error(`docs/reference/${name} is not current: run make generate`);
      code = 1;
    }
  }
  return code;
}

if (import.meta.main) {
  await runCommand(main);
}
