/** Berth installed by `kubectl apply` of one file, and removed again, with the commands of docs/operate/install.md and uninstall.md. */
import { execFile } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { whyNoNodes } from '../../../hack/cluster/nodes/requirements.ts';
import { NO_TRACES, remains } from './remains.ts';
import { BOOT, Installed, SET_UP_MILLISECONDS, VALUES } from '../../worlds/installed.ts';
import { unless } from '../../support/unless.ts';

const ROOT = join(import.meta.dirname, '..', '..', '..');
const PORT = 8080;

const unfit = whyNoNodes();

describe('Berth installed with kubectl', unless(unfit), () => {
  let berth: Installed;
  let manifest: string;

  beforeAll(async () => {
    // The other files of this project have two nodes.
    berth = await Installed.start('apply', { nodes: 1 });
    await berth.prepareNodes();
    manifest = join(berth.cluster.directory, 'install.yaml');
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    await berth?.[Symbol.asyncDispose]();
  });

  test('one file brings operator and hosts, and a VM runs', async () => {
    const values = join(berth.cluster.directory, 'values.yaml');
    await writeFile(values, stringify(VALUES));
    const script = join(ROOT, 'hack', 'manifests.ts');
    await promisify(execFile)(process.execPath, [script, '--output', manifest, '--values', values]);
    await berth.cluster.kubectl(['apply', '--server-side', '--filename', manifest]);
    await berth.rolledOut();
    await berth.createGuestImage('guest');
    await berth.createVM('steady', 'guest', PORT);
    await berth.vms.waitForCondition('steady', 'Ready', { status: 'True' }, BOOT);
    expect(await berth.page('steady', PORT)).toMatchObject({ boots: '1' });
  });

  test('the same file again changes nothing for a VM', async () => {
    const before = await berth.page('steady', PORT);
    await berth.cluster.kubectl(['apply', '--server-side', '--filename', manifest]);
    await berth.rolledOut();
    expect(await berth.page('steady', PORT)).toMatchObject({ boot_id: before['boot_id'], boots: '1' });
  });

  test('deleting it with the commands of the documentation leaves nothing', async () => {
    const text = await readFile(join(ROOT, 'docs', 'operate', 'uninstall.md'), 'utf8');
    const block = /```sh\n(kubectl delete runnersets,vmpools,[\s\S]*?)```/.exec(text)?.[1] ?? '';
    const commands = block.trim().split('\n');
    expect(commands).toHaveLength(3);
    for (const command of commands) {
      const expected = command.replace('dist/install.yaml', manifest).split(' ');
      await berth.cluster.kubectl(expected.slice(1));
    }
    const { objects, hosts } = await remains(berth, []);
    expect(objects).toEqual([]);
    expect(hosts).toEqual(berth.nodes.map(() => NO_TRACES));
  });
});
