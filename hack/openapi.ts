/**
 * Writes the OpenAPI document of the HTTP API from its routes: `docs/reference/openapi.json`.
 *
 *   openapi.ts            writes the file
 *   openapi.ts --check    exits 1 when the file is not current
 */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { pino } from 'pino';
import { loadConfig } from '../server/config.ts';
import { assemble } from '../server/server.ts';
import { runCommand } from './command.ts';

const FILE = join(import.meta.dirname, '..', 'docs', 'reference', 'openapi.json');

/** Returns the text of the document. No connection to the named API server is opened. */
async function document(): Promise<string> {
  const { app, close } = await assemble({
    connection: { server: 'https://127.0.0.1' },
    config: loadConfig(undefined),
    logger: pino({ level: 'silent' }),
  });
  const text = `${JSON.stringify(app.swagger(), undefined, 2)}\n`;
  await close();
  return text;
}

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { check: { type: 'boolean', default: false } } });
  const text = await document();
  if (!values.check) {
    await writeFile(FILE, text);
    return 0;
  }
  if ((await readFile(FILE, 'utf8')) === text) {
    return 0;
  }
  console.error('docs/reference/openapi.json is not current: run make generate');
  return 1;
}

if (import.meta.main) {
  await runCommand(main);
}
