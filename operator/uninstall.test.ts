import { pino } from 'pino';
import { expect, it, vi } from 'vitest';
import type { KubeClient } from '../kube/client.ts';
import { apiErrorFrom } from '../kube/errors.ts';
import type { KubeObject, Ref, Resource } from '../kube/objects.ts';
import { uninstall } from './uninstall.ts';

vi.mock('../base/time.ts', async (original) => ({
  ...(await original<object>()),
  pause: async () => undefined,
}));

const LOGGER = pino({ level: 'silent' });
const OPTIONS = {
  namespace: 'berth-system',
  instance: 'berth',
  drain: true,
  allKinds: false,
  timeoutMilliseconds: 60_000,
};
/** Metadata of Helm's record of the release. */
const RECORD = {
  name: 'sh.helm.release.v1.berth.v1',
  namespace: 'berth-system',
  uid: 'record',
  labels: { version: '1', status: 'uninstalling' },
};
const CONFLICT = { kind: 'Status', status: 'Failure', reason: 'Conflict', message: 'the UID does not match' };

/** Simulates an API server with one VM. A program of a user creates the VM again when it is deleted, up to a number of times. */
class Api {
  uid = 1;
  exists = true;
  /** Number of times that the program still creates the VM. */
  again: number;
  /** Set to replace the VM after the next list, before the caller has deleted it. */
  isReplaced = false;

  constructor(again: number) {
    this.again = again;
  }

  get client(): KubeClient {
    const list = async ({ kind }: Resource<KubeObject>) => {
      const metadata = { name: 'x', namespace: 'platform-ci', uid: String(this.uid) };
      const items = kind === 'VM' && this.exists ? [{ apiVersion: '', kind, metadata }] : [];
      if (kind === 'Secret') {
        items.push({ apiVersion: '', kind, metadata: RECORD });
      }
      this.uid += this.isReplaced ? 1 : 0;
      this.isReplaced = false;
      return { items, resourceVersion: '' };
    };
    const remove = async ({ kind }: Resource<KubeObject>, _: Ref, { uid }: { uid?: string } = {}) => {
      if (kind !== 'VM') {
        return;
      }
      if (uid !== String(this.uid)) {
        throw apiErrorFrom(CONFLICT, 409);
      }
      this.exists = this.again > 0;
      this.again -= 1;
      this.uid += 1;
    };
    return { list, delete: remove } as unknown as KubeClient;
  }
}

it('drains VMs that programs create again under the same name while the hook runs', async () => {
  const api = new Api(2);
  api.isReplaced = true;
  await uninstall(api.client, OPTIONS, LOGGER);
  expect(api.exists).toBe(false);
});
