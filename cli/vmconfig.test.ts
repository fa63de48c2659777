import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterAll, afterEach, beforeAll, expect, it, vi } from 'vitest';
import { KubeClient } from '../kube/client.ts';
import { ApiError } from '../kube/errors.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { addVMConfigCommands } from './vmconfig.ts';
import { writeContext } from '../test/fixtures/kubeconfig.ts';

let folder: string;
let kubeconfig: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-vmconfig-'));
  kubeconfig = await writeContext(folder, 'http://127.0.0.1', { namespace: 'team', token: 'a' });
});

afterEach(() => vi.restoreAllMocks());

afterAll(async () => await rm(folder, { recursive: true }));

/** Runs `vmconfig create` with an image and these flags. */
async function create(...flags: string[]): Promise<void> {
  const noun = new Command()
    .option('--kubeconfig <file>', '', kubeconfig)
    .option('--output <format>', '', 'name');
  addVMConfigCommands(noun, makeTerminal({ environment: { HOME: folder } }));
  await noun.parseAsync(['create', 'ci', '--image', 'linux', ...flags], { from: 'user' });
}

it('reserves the ports of all flags, as a VM does', async () => {
  const created = vi
    .spyOn(KubeClient.prototype, 'create')
    .mockImplementation(async (_type, object) => object as never);
  await create('--reserve-port', '8080:80, 2222:22/tcp', '-p', '5353:53/udp');
  await create();
  const specs = created.mock.calls
    .filter(([{ plural }]) => plural === 'vmconfigs')
    .map(([, object]) => (object as { spec?: object }).spec);
  expect(specs).toMatchObject([
    { image: 'linux', ports: ['8080:80', '2222:22/tcp', '5353:53/udp'] },
    { ports: undefined },
  ]);
});

it('names the flag whose ports the API server refuses', async () => {
  const causes = [{ reason: 'FieldValueInvalid', message: 'Invalid value: "x"', field: 'spec.ports[0]' }];
  const details = { causes };
  vi.spyOn(KubeClient.prototype, 'create').mockRejectedValue(
    new ApiError('is invalid', { status: 422, reason: 'Invalid', details }),
  );
  await expect(create('--reserve-port', 'x')).rejects.toThrow(/^--reserve-port: Invalid value: "x"$/);
});
