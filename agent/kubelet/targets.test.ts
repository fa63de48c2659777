import { expect, it } from 'vitest';
import type { Pod } from '../../kube/core.ts';
import { ownPod, podsIn } from './targets.ts';

const ASKED = { namespace: 'platform-ci', pod: 'vm', container: undefined };

it('tells callers that the agent is starting, instead of denying that it has their Pods', async () => {
  const { promise: synced, resolve } = Promise.withResolvers<void>();
  const pod = { metadata: { name: 'vm' }, spec: { containers: [] } } as unknown as Pod;
  const pods = new Map<string, Pod>();
  const podOf = podsIn({ cache: pods, synced });
  expect(() => ownPod(ASKED, podOf)).toThrow('The agent of this host is starting');
  pods.set('platform-ci/vm', pod);
  resolve();
  await synced;
  expect(ownPod(ASKED, podOf)).toBe(pod);
  pods.clear();
  expect(() => ownPod(ASKED, podOf)).toThrow('Pod platform-ci/vm is not on this host');
});
