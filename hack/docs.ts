/**
 * Writes the generated pages, tables and pictures of the docs.
 *
 *   docs.ts            writes all files
 *   docs.ts --check    exits 1 and names the files that are not current
 */
import { globSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { VM_PHASES } from '../api/v1alpha1/phases.ts';
import { runCommand } from './command.ts';
import {
  changelogFeed,
  configurationPage,
  drawSvg,
  foldersTable,
  kindsPage,
  layersTable,
  lifecycleDot,
  metricsPage,
  reasonsPage,
  valuesPage,
} from './docs/pages.ts';
import { httpRightsPage } from './docs/httprights.ts';
import { fieldsPage } from './docs/surfaces.ts';
import { between, table } from './docs/table.ts';

const ROOT = join(import.meta.dirname, '..');
const ARCHITECTURE = 'docs/develop/architecture.md';
const LIFECYCLE = 'docs/concepts/lifecycle';
const CONFIGURATION = 'docs/reference/configuration.md';
const METRICS = 'docs/reference/metrics.md';

async function read(file: string): Promise<string> {
  return await readFile(join(ROOT, file), 'utf8');
}

/** Returns the text of every generated file by its path. */
async function generated(): Promise<Map<string, string>> {
  const lifecycle = lifecycleDot();
  const drawn = globSync('docs/**/*.dot', { cwd: ROOT }).filter((file) => file !== `${LIFECYCLE}.dot`);
  const pictures = drawn.map(
    async (file) => [file.replace(/dot$/, 'svg'), await drawSvg(await read(file))] as const,
  );
  return new Map([
    [
      ARCHITECTURE,
      between(between(await read(ARCHITECTURE), 'folders', foldersTable()), 'layers', layersTable()),
    ],
    ['docs/reference/http-rights.md', httpRightsPage(await read('docs/reference/openapi.json'))],
    ['docs/reference/fields.md', fieldsPage()],
    ['docs/reference/kinds.md', kindsPage()],
    ['docs/reference/reasons.md', reasonsPage()],
    ['docs/reference/values.md', valuesPage(await read('charts/berth/values.yaml'))],
    [CONFIGURATION, configurationPage(await read(CONFIGURATION))],
    [METRICS, await metricsPage(await read(METRICS))],
    [`${LIFECYCLE}.md`, between(await read(`${LIFECYCLE}.md`), 'phases', phaseTable())],
    [`${LIFECYCLE}.dot`, lifecycle],
    [`${LIFECYCLE}.svg`, await drawSvg(lifecycle)],
    ['docs/changelog.atom', changelogFeed(await read('CHANGELOG.md'))],
    ...(await Promise.all(pictures)),
  ]);
}

function phaseTable(): string {
  return table(
    ['phase', 'meaning'],
    Object.entries(VM_PHASES).map(([name, { meaning }]) => [`\`${name}\``, meaning]),
  );
}

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { check: { type: 'boolean', default: false } } });
  const files = await generated();
  if (!values.check) {
    await Promise.all([...files].map(([file, text]) => writeFile(join(ROOT, file), text)));
    return 0;
  }
  const present = new Set(globSync([...files.keys()], { cwd: ROOT }));
  const stale: string[] = [];
  for (const [file, text] of files) {
    if (!present.has(file) || (await read(file)) !== text) {
      stale.push(file);
    }
  }
  for (const file of stale) {
    console.error(`${file} is not current: run make generate`);
  }
  return stale.length === 0 ? 0 : 1;
}

await runCommand(main);
