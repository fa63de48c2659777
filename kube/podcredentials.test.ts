import type * as Files from 'node:fs/promises';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { loadConnection } from './credentials.ts';

/** Folder that takes the place of the folder with the Pod's service account. */
const account = vi.hoisted(() => ({ folder: '' }));

vi.mock('node:fs/promises', async (original) => {
  const real: typeof Files = await original();
  const moved = (file: string) =>
    file.replace('/var/run/secrets/kubernetes.io/serviceaccount', account.folder);
  return {
    ...real,
    access: async (file: string) => await real.access(moved(file)),
    readFile: async (file: string, encoding: 'utf8') => await real.readFile(moved(file), encoding),
  };
});

let home: string;

beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'berth-pod-'));
  account.folder = join(home, 'account');
  await mkdir(account.folder);
  for (const name of ['token', 'ca.crt', 'namespace']) {
    await writeFile(join(account.folder, name), name);
  }
});

afterAll(async () => await rm(home, { recursive: true }));

it('come from the service account only if no kubeconfig exists and no context is named', async () => {
  const environment = { HOME: home, KUBERNETES_SERVICE_HOST: '10.96.0.1' };
  const file = join(home, '.kube', 'config');
  expect((await loadConnection({ environment })).server).toBe('https://10.96.0.1:443');
  await expect(loadConnection({ environment, context: 'b' })).rejects.toThrow(file);
  const contexts = [{ name: 'b', context: { cluster: 'b' } }];
  const clusters = [{ name: 'b', cluster: { server: 'https://192.0.2.1' } }];
  await mkdir(join(home, '.kube'));
  await writeFile(file, JSON.stringify({ 'current-context': 'b', contexts, clusters }));
  expect((await loadConnection({ environment })).server).toBe('https://192.0.2.1');
});
