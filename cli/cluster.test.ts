import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { CredentialError } from '../kube/errors.ts';
import { withCluster } from './cluster.ts';
import { Interrupted } from './errors.ts';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-cluster-'));
});

afterEach(async () => await rm(folder, { recursive: true }));

it('is interrupted when Ctrl+C has also ended the credential plug-in', async () => {
  const kubeconfig = join(folder, 'kubeconfig');
  const document = {
    clusters: [{ name: 'a', cluster: { server: 'https://127.0.0.1:1' } }],
    contexts: [{ name: 'a', context: { cluster: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const ignored = () => undefined;
  const interrupt = new AbortController();
  const { signal } = interrupt;
  const work = withCluster(
    { name: 'berth', environment: { HOME: folder }, out: ignored, err: ignored, isForPeople: false, signal },
    { kubeconfig, context: 'a', output: 'table' },
    async () => {
      interrupt.abort(new Interrupted());
      throw new CredentialError('The credential plug-in ended with code 130', 130);
    },
  );
  await expect(work).rejects.toThrow(Interrupted);
});
