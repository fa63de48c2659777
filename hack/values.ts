/**
 * Makes `charts/berth/values.schema.json` from hack/values/schema.ts. `charts/berth/files/crds/` is a copy of `crds/`, because Helm reads only
 * files inside a chart.
 *
 *   values.ts            writes both
 *   values.ts --check    exits 1 and prints the differences when they are not current
 */
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { isMissing } from '../base/errors.ts';
import { runCommand } from './command.ts';
import { valuesJsonSchema } from './values/schema.ts';

const ROOT = join(import.meta.dirname, '..');
const CHART = join(ROOT, 'charts', 'berth');

/** Returns the text of every generated file by its path below the chart. */
async function generated(): Promise<Map<string, string>> {
  const files = new Map([['values.schema.json', `${JSON.stringify(valuesJsonSchema(), undefined, 2)}\n`]]);
  for (const name of await readdir(join(ROOT, 'crds'))) {
    files.set(join('files', 'crds', name), await readFile(join(ROOT, 'crds', name), 'utf8'));
  }
  return files;
}

async function present(): Promise<string[]> {
  await mkdir(join(CHART, 'files', 'crds'), { recursive: true });
  const crds = await readdir(join(CHART, 'files', 'crds'));
  return [...crds.map((name) => join('files', 'crds', name)), 'values.schema.json'];
}

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { check: { type: 'boolean', default: false } } });
  const files = await generated();
  const stale = (await present()).filter((name) => !files.has(name));
  if (!values.check) {
    await Promise.all(stale.map((name) => rm(join(CHART, name))));
    await Promise.all([...files].map(([name, content]) => writeFile(join(CHART, name), content)));
    return 0;
  }
  const different: string[] = [];
  for (const [name, content] of files) {
    const actual = await readFile(join(CHART, name), 'utf8').catch(ignoreMissing);
    if (actual !== content) {
      different.push(`charts/berth/${name}: is not what hack/values.ts makes of it`);
    }
  }
  const found = [...stale.map((name) => `charts/berth/${name}: nothing makes this file`), ...different];
  for (const line of found) {
    console.error(line);
  }
  if (found.length > 0) {
    console.error('generated files are not current: run make generate');
  }
  return found.length === 0 ? 0 : 1;
}

function ignoreMissing(error: unknown): undefined {
  if (isMissing(error)) {
    return undefined;
  }
  throw error;
}

if (import.meta.main) {
  await runCommand(main);
}
