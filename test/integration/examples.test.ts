/** The API server accepts the examples with all its rules and policies, without changes by the user. */
import { globSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import { sharedCluster } from '../support/cluster.ts';

const ROOT = join(import.meta.dirname, '..', '..');

let cluster: Cluster;

beforeAll(async () => {
  cluster = await sharedCluster();
});

test.each(globSync('examples/*.yaml', { cwd: ROOT }).toSorted())(
  '%s is accepted, and its last lines say how to reach the VM',
  async (file) => {
    const path = join(ROOT, file);
    const { stdout } = await cluster.kubectl(['apply', '--dry-run=server', '--validate=strict', '-f', path]);
    expect(stdout).toMatch(/^vm.berth.dev\/\S+ created/m);
    const text = await readFile(path, 'utf8');
    expect(text.slice(text.lastIndexOf('\n\n'))).toMatch(/^\s*# Reach it[^]*\n#   (kubectl|ssh|curl) /);
  },
);
