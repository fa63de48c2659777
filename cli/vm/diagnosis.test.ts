import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { diagnose, type Seen } from './diagnosis.ts';
import { formatPage } from './why.ts';

const TIME = '2026-11-23T12:00:00Z';

function condition(type: string, status: string, reason: string, message = '') {
  return { type, status, reason, message, lastTransitionTime: TIME };
}

function vm({ spec = {}, metadata = {}, ...status }: Record<string, unknown>): VM {
  return { metadata: { name: 'mac', namespace: 'a', ...(metadata as object) }, spec, status } as VM;
}

const pending = (reason: string, message: string) =>
  vm({ phase: 'Pending', conditions: [condition('Scheduled', 'False', reason, message)] });
const failed = (reason: string, message: string) =>
  vm({ phase: 'Failed', failure: { reason, message, time: TIME } });
const waits = (type: string, reason: string, message: string) =>
  vm({ phase: 'Pulling', nodeName: 'h1', conditions: [condition(type, 'False', reason, message)] });

/** Pod that asks for an arm64 host with a tag. */
const TAGGED = {
  spec: {
    affinity: {
      nodeAffinity: {
        requiredDuringSchedulingIgnoredDuringExecution: {
          nodeSelectorTerms: [
            {
              matchExpressions: [
                { key: 'kubernetes.io/arch', operator: 'In', values: ['arm64'] },
                { key: 'tag.berth.dev/fast', operator: 'Exists' },
              ],
            },
          ],
        },
      },
    },
  },
} as unknown as Pod;
const host = (labels: object) =>
  ({ metadata: { name: 'h1', labels: { 'berth.dev/host': 'true', ...labels } } }) as unknown as Node;
const ARM = { 'kubernetes.io/arch': 'arm64' };
const NO_MATCH = 'No host has the architecture, name or tag that the VM requests';

const CAUSES: [string, Seen, { area: string; reason: string; todo: RegExp }][] = [
  [
    'no host',
    { vm: pending('Unschedulable', NO_MATCH), nodes: [] },
    step('scheduler', 'Unschedulable', /no hosts: add one/),
  ],
  [
    'no host, for a user who may not read Nodes',
    { vm: pending('Unschedulable', 'no nodes available to schedule pods') },
    step('scheduler', 'Unschedulable', /whether the cluster has hosts/),
  ],
  [
    'no slot',
    { vm: pending('Unschedulable', 'No host is free: 3 without a free slot, 1 cordoned') },
    step('scheduler', 'Unschedulable', /^All slots are taken/),
  ],
  [
    'tag',
    { vm: pending('Unschedulable', NO_MATCH), pod: TAGGED, nodes: [host(ARM)] },
    step('scheduler', 'Unschedulable', /^No host has the tag fast:/),
  ],
  [
    'tag, for a user who may not read Nodes',
    { vm: pending('Unschedulable', NO_MATCH), pod: TAGGED },
    step('scheduler', 'Unschedulable', /^The VM requests the architecture arm64, the tag fast:/),
  ],
  [
    'hosts that refused the VM',
    {
      vm: pending('Unschedulable', 'All hosts that match the VM have refused it: h1. The Events'),
      nodes: [host(ARM)],
    },
    step('scheduler', 'Unschedulable', /^Each host refused the VM once:/),
  ],
  [
    'quota',
    {
      vm: pending(
        'PodRefused',
        'pods "mac" is forbidden: exceeded quota: small, requested: berth.dev/slot=1',
      ),
    },
    step('quota', 'PodRefused', /raise the ResourceQuota small$/),
  ],
  [
    'port',
    {
      vm: pending(
        'Unschedulable',
        'No host is free: 2 with a reserved port in use (8822/TCP is held by VM other)',
      ),
    },
    step('scheduler', 'Unschedulable', /^Reserve another port/),
  ],
  [
    'port on the host',
    { vm: failed('PortTaken', 'port 8822') },
    step('network', 'PortTaken', /^Reserve a port/),
  ],
  [
    'image missing',
    { vm: waits('ImageReady', 'ImageNotFound', 'no tag 9') },
    step('image', 'ImageNotFound', /Correct the name/),
  ],
  [
    'pull secret',
    { vm: waits('ImageReady', 'PullSecretMissing', 'no regcred') },
    step('image', 'PullSecretMissing', /^Create the secret/),
  ],
  ['disk full', { vm: waits('ImageReady', 'DiskFull', '9 bytes') }, step('image', 'DiskFull', /^Free space/)],
  [
    'disk full while it runs',
    { vm: vm({ phase: 'Running', conditions: [condition('Ready', 'False', 'HostDiskFull', 'paused')] }) },
    step('host', 'HostDiskFull', /^Free space/),
  ],
  [
    'NAT',
    { vm: failed('NATSelfHealFailed', 'rule 7') },
    step('network', 'NATSelfHealFailed', /^Remove the rule/),
  ],
  [
    'NAT of all hosts',
    { vm: pending('Unschedulable', 'No host is free: 1 with broken NAT') },
    step('scheduler', 'Unschedulable', /network of a host is broken/),
  ],
  [
    'NAT while it runs',
    {
      vm: vm({
        phase: 'Running',
        conditions: [
          condition('Ready', 'True', 'Running'),
          condition('NetworkReady', 'False', 'Faulty', 'lost'),
        ],
      }),
    },
    step('network', 'Faulty', /^Remove the rules/),
  ],
  [
    'start failure',
    { vm: failed('StartFailed', 'no KVM') },
    step('machine', 'StartFailed', /check the hypervisor/),
  ],
  [
    'guest not ready',
    { vm: vm({ phase: 'Running', conditions: [condition('Ready', 'False', 'NotReady', 'port 22')] }) },
    step('guest', 'NotReady', /console of the guest/),
  ],
  [
    'host lost',
    {
      vm: vm({ phase: 'Running', conditions: [condition('Ready', 'Unknown', 'HostUnreachable', 'Host h1')] }),
    },
    step('host', 'HostUnreachable', /^Look at the host/),
  ],
  [
    'host lost for long',
    { vm: vm({ phase: 'Failed', conditions: [condition('Ready', 'False', 'HostLost', 'silent')] }) },
    step('host', 'HostLost', /^Bring the host back/),
  ],
  [
    'a pull secret that the host cannot read',
    { vm: vm({ phase: 'Pulling', conditions: [condition('Ready', 'False', 'SecretNotRead', 'regcred')] }) },
    step('host', 'SecretNotRead', /connection of the host/),
  ],
  [
    'an image that is not ready',
    {
      vm: waits('ImageReady', 'ImageNotReady', 'Image base has no content'),
      image: {
        metadata: { name: 'base' },
        status: { conditions: [condition('Ready', 'False', 'DiskFull', 'no room')] },
      } as never,
    },
    step('image', 'ImageNotReady', /^Read the condition’s message, and look at the status/),
  ],
  [
    'a guest that has shut down',
    { vm: vm({ phase: 'Stopped', conditions: [condition('Ready', 'False', 'GuestShutdown')] }) },
    step('machine', 'GuestShutdown', /vm start mac/),
  ],
  [
    'deletion',
    { vm: vm({ metadata: { deletionTimestamp: TIME } }) },
    step('host', 'Terminating', /^Wait until/),
  ],
];

function step(area: string, reason: string, todo: RegExp) {
  return { area, reason, todo };
}

it.each(CAUSES)('finds the cause: %s', (_, seen, { area, reason, todo }) => {
  const diagnosis = diagnose(seen);
  expect(diagnosis).toMatchObject({ ok: false, area, reason });
  expect(diagnosis.todo[0]).toMatch(todo);
  expect(diagnosis.checks.filter(({ state }) => state === 'problem').map((check) => check.area)).toEqual([
    area,
  ]);
});

it('says of a VM that runs that nothing is wrong, and of another what it waits for', () => {
  const runs = diagnose({
    vm: vm({ phase: 'Running', conditions: [condition('Ready', 'True', 'Running')] }),
  });
  expect(runs).toMatchObject({ ok: true, todo: [], message: 'VM mac runs, and nothing is wrong' });
  const pulls = vm({
    phase: 'Pulling',
    nodeName: 'h1',
    progress: 'Pulling 42 % (80 MB/s)',
    conditions: [condition('Ready', 'False', 'Pulling')],
  });
  expect(diagnose({ vm: pulls })).toMatchObject({ ok: false, message: 'Pulling 42 % (80 MB/s)' });
  const unseen = { ...vm({}), status: undefined } as unknown as VM;
  expect(diagnose({ vm: unseen })).toMatchObject({ todo: [expect.stringContaining('operator')] });
});

it('shows the machine of a VM that is to be suspended as off, and as no problem', () => {
  const suspended = diagnose({ vm: vm({ spec: { powerState: 'Suspended' }, phase: 'Suspended' }) });
  expect(suspended).toMatchObject({
    area: 'machine',
    reason: 'Suspended',
    message: 'spec.powerState asks for Suspended',
    todo: ['Start the VM again: vm resume mac'],
  });
  expect(suspended.checks).toContainEqual(expect.objectContaining({ area: 'machine', state: 'off' }));
});

it('says that the guest has powered itself off only if the host says so', () => {
  const off = (phase: string, powerState: string) =>
    diagnose({ vm: vm({ spec: { powerState }, phase, conditions: [condition('Ready', 'False', phase)] }) });
  // A new VM that is to be suspended has no memory to save, so it is Stopped.
  expect(off('Stopped', 'Suspended')).toMatchObject({
    reason: 'Stopped',
    message: 'spec.powerState asks for Suspended',
  });
  expect(off('Suspended', 'Stopped')).toMatchObject({ message: 'spec.powerState asks for Stopped' });
  const starts = off('Stopped', 'Running');
  expect(starts).toMatchObject({ ok: false, todo: ['Wait. The host is working on the VM'] });
  expect(starts).not.toHaveProperty('reason');
});

it('adds the words of the Image, and passes on reasons that it does not know', () => {
  const [, seen] = CAUSES.find(([cause]) => cause.startsWith('an image')) ?? CAUSES[0]!;
  expect(diagnose(seen).message).toBe('Image base has no content. Image base: no room');
  const strange = diagnose({ vm: failed('FanBroken', 'too hot') });
  expect(strange).toMatchObject({ area: 'machine', reason: 'FanBroken', message: 'too hot', todo: [] });
  expect(strange).not.toHaveProperty('meaning');
});

it('writes one page without characters that control a terminal', () => {
  const diagnosis = diagnose({ vm: failed('StartFailed', 'qemu: \u001b[2J bad') });
  const events = [{ time: TIME, type: 'Warning', reason: 'StartFailed', count: 3, message: 'a\nb' }] as const;
  const page = formatPage(diagnosis, events, Date.parse(TIME) + 300_000);
  expect(page).toMatch(/^VM mac \(Failed\): qemu: {2}\[2J bad\n/);
  expect(page).toMatch(/^ {2}machine +problem +StartFailed$/m);
  expect(page).toMatch(/What to do:\n {2}Read the condition’s message/);
  expect(page).toMatch(/^ {2}5m +StartFailed +a b \(3 times\)$/m);
  expect(page.split('\n').length).toBeLessThan(40);
});
