/** The API server accepts the examples with all its rules and policies, without changes by the user. */
import { globSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { createDriver } from '../../operator/server/drivers/create.ts';
import type { Credentials } from '../../operator/server/drivers/driver.ts';
import { sharedCluster } from '../support/cluster.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const EXAMPLES = globSync('examples/*.yaml', { cwd: ROOT }).toSorted();
/** Objects of Berth for CI systems. Those of other projects need their kinds, which no test has. */
const CI_EXAMPLES = globSync('examples/ci/{github,buildkite}/*.yaml', { cwd: ROOT }).toSorted();

let cluster: Cluster;

beforeAll(async () => {
  cluster = await sharedCluster();
});

test.each(EXAMPLES)('%s is accepted, and its last lines say how to use it', async (file) => {
  const path = join(ROOT, file);
  const { stdout } = await cluster.kubectl(['apply', '--dry-run=server', '--validate=strict', '-f', path]);
  expect(stdout).toMatch(/^(vm|vmpool|server).berth.dev\/\S+ created/m);
  const text = await readFile(path, 'utf8');
  expect(text.slice(text.lastIndexOf('\n\n'))).toMatch(/^\s*# (Reach|Use) it[^]*\n#   (kubectl|ssh|curl) /);
});

test.each(CI_EXAMPLES)('%s is accepted', async (file) => {
  const path = join(ROOT, file);
  const { stdout } = await cluster.kubectl(['apply', '--dry-run=server', '--validate=strict', '-f', path]);
  expect(stdout).toMatch(/^(runnerset|vmpool).berth.dev\/\S+ created/m);
});

test.each(EXAMPLES.filter((file) => file.includes('/server-')))(
  '%s has a controller and credentials that Berth can use',
  async (file) => {
    const documents = parseAllDocuments(await readFile(join(ROOT, file), 'utf8'));
    const [secret, server] = documents.map((one) => one.toJS() as unknown) as [
      { metadata: { name: string }; stringData: { username: string; password: string } },
      Server,
    ];
    expect(server.spec.controller.secretName).toBe(secret.metadata.name);
    const credentials: Credentials = secret.stringData;
    expect(() => createDriver(server.spec.controller, credentials)).not.toThrow();
  },
);
