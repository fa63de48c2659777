import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { createParts, type HostParts, runAgent, takeUpWork } from './agent.ts';
import { HostUnfitError } from './fitness.ts';
import { configSchema } from './config.ts';
import { makeFolder } from '../test/support/folder.ts';

test('a driver that cannot check the host is logged with its stack, and is named when no other driver can run', async () => {
  const config = configSchema.parse({
    nodeName: 'mac1',
    dataDirectory: '/nowhere',
    address: '192.0.2.7',
    bootstrapKubeconfig: '/nowhere/kubeconfig',
    network: { driver: 'user' },
  });
  const failure = new Error('the hypervisor gave no answer');
  const driver = { name: 'qemu', probe: () => Promise.reject(failure) };
  const parts = { drivers: [driver], metrics: new Registry() } as unknown as HostParts;
  const logger = pino({ enabled: false });
  const error = vi.spyOn(logger, 'error');
  const running = runAgent(config, parts, logger, new AbortController().signal);
  await expect(running).rejects.toThrow(
    new HostUnfitError('The driver qemu could not check this host: the hypervisor gave no answer'),
  );
  expect(error).toHaveBeenCalledWith({ err: failure, driver: 'qemu' }, expect.any(String));
});

test('without an API server, the work on Pods begins too, because the agent must end machines if its host stays cut off', () => {
  const known = new Promise<void>(() => undefined);
  const pods = { start: vi.fn(() => known) };
  const kubelet = { hasJoined: false };
  const { signal } = new AbortController();
  void takeUpWork({ keeper: { start: () => known }, pods, kubelet }, signal);
  expect(pods.start).toHaveBeenCalledWith(signal, known);
  expect(kubelet.hasJoined).toBe(false);
});

test('a fault of the folder of the image storage does not keep the agent from starting', async () => {
  const folder = makeFolder();
  // The mode of this folder cannot be set, as that of a folder on a faulty file server.
  await writeFile(join(folder, 'file'), '');
  const config = configSchema.parse({
    nodeName: 'host',
    dataDirectory: join(folder, 'data'),
    address: '127.0.0.1',
    bootstrapKubeconfig: '/nowhere/kubeconfig',
    network: { driver: 'user' },
    images: { storageFolder: join(folder, 'file', 'storage') },
  });
  const lines: string[] = [];
  const logger = pino({ level: 'error' }, { write: (line: string) => void lines.push(line) });
  const { images } = await createParts(config, logger);
  expect(images.images()).toEqual([]);
  await expect.poll(() => lines.join('')).toContain('ENOTDIR');
});
