/** Runs the suites of helm-unittest in charts/berth/tests, and checks that the packaged chart does not contain them. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { resolveChartTools } from '../../hack/cluster/toolchain/toolchain.ts';
import { CHART, helm, run } from '../support/chart.ts';
import { makeFolder } from '../support/folder.ts';

interface Suite {
  suite: string;
  tests: unknown[];
}

const SUITES = readdirSync(join(CHART, 'tests'))
  .filter((name) => name.endsWith('_test.yaml'))
  .map((name) => {
    const { suite, tests } = parse(readFileSync(join(CHART, 'tests', name), 'utf8')) as Suite;
    return { file: join('tests', name), suite, count: tests.length };
  });

test.each(SUITES)('$suite ($count tests)', async ({ file, count }) => {
  const program = (await resolveChartTools())['helm-unittest'];
  const { code, stdout, stderr } = await run(program, ['--strict', '--file', file, CHART]);
  expect(`${stdout}${stderr}`).toContain(`Tests:       ${count} passed, ${count} total`);
  expect(code).toBe(0);
});

test('the packaged chart contains no tests', async () => {
  const folder = makeFolder();
  const { code, stderr } = await helm(['package', CHART, '--destination', folder]);
  expect({ code, stderr }).toMatchObject({ code: 0 });
  const [archive = ''] = readdirSync(folder);
  const { stdout } = await run('tar', ['-tzf', join(folder, archive)]);
  const names = stdout.trim().split('\n');
  expect(names).toEqual(
    expect.arrayContaining(['berth/README.md', 'berth/values.schema.json', 'berth/profiles/gke.yaml']),
  );
  expect(names.filter((name) => name.startsWith('berth/tests/'))).toEqual([]);
});
