import { join } from 'node:path';
import { writeFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { makeTerminal } from '../../test/fixtures/terminals.ts';
import { makeFolder } from '../../test/support/folder.ts';
import { run } from '../program.ts';

/** Runs `vm run` without a cluster. */
async function runWithoutCluster(...args: string[]) {
  const folder = makeFolder();
  const kubeconfig = join(folder, 'kubeconfig');
  const document = {
    clusters: [{ name: 'a', cluster: { server: 'http://127.0.0.1:1' } }],
    contexts: [{ name: 'a', context: { cluster: 'a', user: 'a' } }],
    'current-context': 'a',
    users: [{ name: 'a', user: { token: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  let written = '';
  const terminal = makeTerminal({
    environment: { HOME: folder, KUBECONFIG: kubeconfig },
    err: (text) => void (written += text),
  });
  return [await run(['vm', 'run', ...args, '--', 'true'], terminal), written];
}

it.each([
  [[], 201, 'The API server does not answer'],
  [['--env-secret', 'job'], 208, 'The API server does not answer'],
  [['--copy', '/does/not/exist:/x'], 2, '--copy /does/not/exist: ENOENT'],
  [['--pool', 'ci'], 2, 'Use only one of --pool and --image'],
  [['--timeout', '0'], 2, '--timeout 0 must be from 1'],
  [['--copy', 'one'], 2, 'It must be SOURCE:TARGET'],
  [['--copy', '/dev/null:/x'], 2, 'must be a file or a folder'],
])('tells with %j by its exit code why the command did not run', async (args, code, says) => {
  expect(await runWithoutCluster('--image', 'mac', ...args)).toEqual([code, expect.stringContaining(says)]);
});

it('tells that a source is missing before it asks the cluster', async () => {
  expect(await runWithoutCluster('--env-secret', 'job')).toEqual([
    2,
    expect.stringContaining('Name the source of the VM'),
  ]);
});
