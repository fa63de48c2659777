import { expect, it } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import { Occupants } from './occupants.ts';

interface PodFacts {
  readonly name: string;
  readonly namespace?: string;
  readonly label?: string;
  readonly phase?: string;
  readonly waiting?: string;
}

function pod({
  name,
  namespace = 'platform-a',
  label = 'vm-uid',
  phase = 'Running',
  waiting,
}: PodFacts): object {
  const state = waiting === undefined ? {} : { waiting: { reason: waiting } };
  return {
    metadata: { name, namespace, labels: { [`berth.dev/${label}`]: 'x' } },
    status: { phase, containerStatuses: [{ name: 'machine', state }] },
  };
}

/** The answer to a user who may list VMs in these namespaces. */
async function describe(pods: readonly PodFacts[], namespaces: readonly string[]): Promise<string> {
  const asked: unknown[] = [];
  const client = {
    list: async (_type: unknown, options: unknown) => {
      asked.push(options);
      return { items: pods.map(pod) };
    },
  };
  const authorizer = {
    authorize: async (
      _user: unknown,
      { resourceAttributes }: { resourceAttributes: { namespace: string; resource: string; verb: string } },
    ) =>
      resourceAttributes.verb === 'list' &&
      resourceAttributes.resource === 'vms' &&
      namespaces.includes(resourceAttributes.namespace),
  };
  const occupants = new Occupants(client as unknown as KubeClient, authorizer as unknown as Authorizer);
  const text = await occupants.describe({ name: 'ann', user: { username: 'ann' } }, 'host-1');
  expect(asked).toEqual([{ fieldSelector: 'spec.nodeName=host-1' }]);
  return text;
}

it.each([
  ['nothing for a caller without rights', [{ name: 'a' }], [], ''],
  [
    'the VMs in the order of their names',
    [{ name: 'b' }, { name: 'a' }],
    ['platform-a'],
    ': platform-a/a, platform-a/b',
  ],
  [
    'the number of VMs that the caller may not list, and of emulators',
    [{ name: 'a' }, { name: 'x', namespace: 'platform-b' }, { name: 'e.emulator', label: 'emulator-uid' }],
    ['platform-a'],
    ': platform-a/a and 2 more',
  ],
  [
    'no VM that has ended, is stopped or is suspended, and no other Pod',
    [
      { name: 'a' },
      { name: 'ended', phase: 'Failed' },
      { name: 'stopped', waiting: 'Stopped' },
      { name: 'suspended', waiting: 'Suspended' },
      { name: 'other', label: 'image-uid' },
    ],
    ['platform-a'],
    ': platform-a/a',
  ],
  [
    'ten VMs at most',
    Array.from({ length: 13 }, (_, index) => ({ name: `vm-${String(index).padStart(2, '0')}` })),
    ['platform-a'],
    `: ${Array.from({ length: 10 }, (_, index) => `platform-a/vm-${String(index).padStart(2, '0')}`).join(', ')} and 3 more`,
  ],
] as const)('names %s', async (_what, pods, namespaces, text) => {
  expect(await describe(pods, namespaces)).toBe(text);
});

it('names nothing to a user with a password, and asks nobody', async () => {
  const occupants = new Occupants({} as KubeClient, {} as Authorizer);
  expect(await occupants.describe({ name: 'berth-server-users/ann' }, 'host-1')).toBe('');
});
