import { expect, it } from 'vitest';
import { UNCHECKED_GUEST } from '../../api/v1alpha1/reasons.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { diagnose, type Seen } from '../../actions/diagnosis.ts';
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
const stored = (kind: string, name: string, ready: string) => {
  const conditions = [condition('Ready', ready, 'DiskFull', 'no room')];
  return { kind, metadata: { name }, status: { conditions } } as never;
};

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
    step(
      'quota',
      'PodRefused',
      /^Delete VMs of the namespace, or ask an admin to raise the ResourceQuota small$/,
    ),
  ],
  [
    'port',
    {
      vm: pending(
        'Unschedulable',
        'No host is free: 2 with a reserved port in use (8822/TCP is held by VM other)',
      ),
    },
    step('scheduler', 'Unschedulable', /^Delete the VM that uses the requested port, or create the VM again/),
  ],
  [
    'port on the host',
    { vm: failed('PortTaken', 'port 8822') },
    step('network', 'PortTaken', /^Reserve a port/),
  ],
  [
    'image missing',
    { vm: waits('ImageReady', 'ImageNotFound', 'no tag 9') },
    step('image', 'ImageNotFound', /^Make the image available under the name in the message/),
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
    'a host whose disk is nearly full',
    { vm: pending('Unschedulable', 'No host is free: 1 whose disk is nearly full') },
    step('scheduler', 'Unschedulable', /free space on it$/),
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
    'no SSH server',
    { vm: vm({ phase: 'Running', conditions: [condition('Ready', 'False', 'NoSSHServer', 'port 22')] }) },
    step('guest', 'NoSSHServer', /^Look at the console of the guest/),
  ],
  [
    'a quota of CPU',
    {
      vm: pending('PodRefused', 'exceeded quota: few, requested: pods=1,cpu=4, used: cpu=2, limited: cpu=4'),
    },
    step('quota', 'PodRefused', /^Delete VMs of the namespace, make the VM smaller, or ask an admin/),
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
      images: [stored('ISO', 'tools', 'True'), stored('Image', 'base', 'False')],
    },
    step('image', 'ImageNotReady', /^Read the condition’s message, and look at the status/),
  ],
  [
    'a guest that has shut down',
    { vm: vm({ phase: 'Stopped', conditions: [condition('Ready', 'False', 'GuestShutdown')] }) },
    step('machine', 'GuestShutdown', /: berth vm start mac$/),
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
  expect(runs).toMatchObject({ ok: true, todo: [], message: 'VM mac runs. Nothing is wrong' });
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
    todo: ['Start the VM again: berth vm resume mac'],
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

it('adds the words of the Image or ISO that is not ready, and passes on reasons that it does not know', () => {
  const [, seen] = CAUSES.find(([cause]) => cause.startsWith('an image')) ?? CAUSES[0]!;
  expect(diagnose(seen).message).toBe('Image base has no content. Image base: no room');
  const disc = { ...seen, images: [stored('ISO', 'base', 'False')] };
  expect(diagnose(disc).message).toBe('Image base has no content. ISO base: no room');
  const strange = diagnose({ vm: failed('FanBroken', 'too hot') });
  const known = { area: 'machine', reason: 'FanBroken', message: 'too hot' };
  expect(strange).toMatchObject({ ...known, todo: ['Create the VM again'] });
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

const WAITS = 'The VM waits without a time limit, and goes on by itself when the cause is gone';
const TRIES =
  'The host tries again. The VM fails if it is not Running deployTimeoutSeconds after it got its host';
const KEPT = 'Berth keeps the VM, and looks again until the cause is gone';
const FINAL = 'The VM has failed, and Berth does not start it again';
const UNABLE = 'Berth does not start this VM, because its spec is not possible here';
const OFF = 'The VM stays off until somebody starts it';
const NO_FREE =
  'The hosts that match the VM cannot take it now. The message has the number of hosts for each cause';
const runs = (...conditions: object[]) => ({
  vm: vm({ phase: 'Running', nodeName: 'h1', firstRunningTime: TIME, conditions }),
});
const unplaced = (reason: string, message: string) => ({
  vm: vm({ phase: 'Pending', conditions: [condition('ImageReady', 'False', reason, message)] }),
});
const unschedulable = (message: string): Seen => ({ vm: pending('Unschedulable', message) });

it.each<[string, Seen, meaning: string, outlook: string]>([
  [
    'the name of no Image',
    unplaced('ImageNotFound', 'Image x was not found'),
    'The tag, digest or file does not exist, or there is no Image or ISO of that name',
    WAITS,
  ],
  [
    'a reference that does not exist',
    { vm: failed('ImageNotFound', 'no tag 9') },
    'The tag, digest or file does not exist, or there is no Image or ISO of that name',
    FINAL,
  ],
  ['too little memory', unschedulable('No host is free: 1 short of memory'), NO_FREE, WAITS],
  [
    'a size that no host has',
    unschedulable('No host can take it: 1 with too little memory for it'),
    'No host can take the VM, even when it is empty',
    WAITS,
  ],
  [
    'an architecture that no host has',
    unschedulable(NO_MATCH),
    'No host matches the VM. Room is not the cause',
    WAITS,
  ],
  [
    'no Node',
    unschedulable('no nodes available to schedule pods'),
    'No host matches the VM. Room is not the cause',
    WAITS,
  ],
  [
    'macOS without a Mac',
    unschedulable('No host can take it: 2 that run no macOS guests'),
    'No host can take the VM, even when it is empty',
    WAITS,
  ],
  ['a third macOS guest', unschedulable('No host is free: 1 with two macOS guests already'), NO_FREE, WAITS],
  [
    'hosts that refused it',
    unschedulable('All hosts that match the VM have refused it: h1'),
    'Each host that matches the VM has refused it. Room is not the cause',
    'The VM waits without a time limit for another host, and does not go back to hosts that refused it',
  ],
  ['a port in use', unschedulable('No host is free: 1 with a reserved port in use'), NO_FREE, WAITS],
  [
    'a quota',
    { vm: pending('PodRefused', 'exceeded quota: small, requested: cpu=1') },
    'The API server refused the Pod or a change of it, or its errors last. The message contains the answer of the API server',
    WAITS,
  ],
  [
    'a Secret that is missing',
    { vm: waits('UserDataReady', 'SecretNotFound', 'no Secret') },
    'The Secret in spec.userDataSecretRef does not exist, or has no entry with the given key. The machine waits until the Secret and the entry exist',
    TRIES,
  ],
  [
    'a full disk before the first run',
    { vm: waits('ImageReady', 'DiskFull', '9 bytes') },
    'The host has too little disk space, or the namespace has its share. The message has the needed bytes, the agent’s log the free ones',
    TRIES,
  ],
  [
    'a full disk while it runs',
    runs(condition('Ready', 'False', 'HostDiskFull', 'paused')),
    'The machine is paused, because the disk of its host is full',
    KEPT,
  ],
  [
    'a check that fails',
    runs(condition('Ready', 'False', 'NotReady', 'port 80')),
    'The machine runs, but its guest does not pass the check of readiness',
    KEPT,
  ],
  [
    'no SSH server',
    runs(condition('Ready', 'False', 'NoSSHServer', 'port 22')),
    'The guest has SSH keys, but no SSH server has answered for longer than deployTimeoutSeconds. The VM runs on',
    KEPT,
  ],
  [
    'a silent host',
    runs(condition('Ready', 'Unknown', 'HostUnreachable', 'Host h1')),
    'The host of the VM does not report. Perhaps the machine is still running',
    KEPT,
  ],
  [
    'a crash',
    { vm: failed('Crashed', 'qemu') },
    'The hypervisor ended or stopped its guest unexpectedly. The condition’s message contains the last output of the hypervisor',
    FINAL,
  ],
  [
    'a deployment that took too long',
    { vm: failed('DeployTimeout', '600 s') },
    'The VM did not become Running within deployTimeoutSeconds after it got its host',
    FINAL,
  ],
  [
    'a deleted Pod',
    { vm: failed('PodDeleted', 'gone') },
    'The Pod of the VM was deleted. If the VM has not run yet, it gets another Pod',
    FINAL,
  ],
  [
    'a network mode',
    { vm: vm({ conditions: [condition('Stalled', 'True', 'NetworkModeUnsupported', 'Bridge')] }) },
    'No network driver of the hosts supports the network mode of the VM',
    UNABLE,
  ],
  [
    'a guest that powered itself off',
    { vm: vm({ phase: 'Stopped', conditions: [condition('Ready', 'False', 'GuestShutdown')] }) },
    'The guest powered itself off',
    OFF,
  ],
  [
    'a VM that is to be off',
    { vm: vm({ spec: { powerState: 'Stopped' }, phase: 'Stopped' }) },
    'The machine is off, and its disk stays',
    OFF,
  ],
  [
    'a name in use',
    { vm: pending('PodNameTaken', 'Pod mac') },
    'Another Pod has the name that the Pod of the VM must have',
    WAITS,
  ],
])('what is said is true: %s', (_, seen, meaning, outlook) => {
  expect(diagnose(seen)).toMatchObject({ meaning, outlook });
});

it('says once that a failed VM must be created again, and not that it starts by itself', () => {
  const available =
    'Make the image available under the name in the message, or create the VM with another image';
  expect(diagnose({ vm: failed('ImageNotFound', 'no tag 9') }).todo).toEqual([
    available,
    'Create the VM again',
  ]);
  const stalled = vm({ conditions: [condition('Stalled', 'True', 'NetworkModeUnsupported', 'Bridge')] });
  expect(diagnose({ vm: stalled }).todo).toEqual(['Create the VM with spec.network.mode: NAT']);
});

it.each([
  ['the os', 'No host can take it: 1 that run no macOS guests'],
  ['the ports', 'No host is free: 1 with a reserved port in use'],
  ['a smaller disk', 'No host can take it: 1 with too small a disk for it'],
  ['a smaller disk, for now', 'No host is free: 1 short of disk (ephemeral-storage)'],
  ['the architecture, name or tag', NO_MATCH],
])('advises to create the VM again where the API server refuses to change %s', (_, message) => {
  const pod = message === NO_MATCH ? TAGGED : undefined;
  expect(diagnose({ vm: pending('Unschedulable', message), pod, nodes: [host({})] }).todo).toEqual([
    expect.stringContaining('reate the VM again'),
  ]);
});

it('shows nothing as ok that only a silent host could tell', () => {
  const network = condition('NetworkReady', 'True', 'Healthy');
  const silent = diagnose(runs(condition('Ready', 'Unknown', 'HostUnreachable', 'Host h1'), network));
  expect(silent.checks.map(({ area, state }) => `${area}: ${state}`)).toEqual([
    'spec: ok',
    'scheduler: ok',
    'quota: ok',
    'image: ok',
    'network: not checked',
    'host: problem',
    'machine: not checked',
    'guest: not checked',
  ]);
});

it('shows the image as ok when the host has made the disk of it and waits for something else', () => {
  const conditions = [condition('UserDataReady', 'False', 'SecretNotFound', 'no Secret')];
  const { checks } = diagnose({ vm: vm({ phase: 'Starting', nodeName: 'h1', conditions }) });
  expect(checks).toContainEqual({ area: 'image', state: 'ok', message: '' });
  expect(checks).toContainEqual(expect.objectContaining({ area: 'guest', state: 'problem' }));
});

it('does not say that all is well where nobody looked', () => {
  const unchecked = diagnose(runs(condition('Ready', 'True', 'Running', UNCHECKED_GUEST)));
  expect(unchecked).toMatchObject({ ok: true, message: 'VM mac runs. Its guest is not checked' });
  expect(unchecked.checks).toContainEqual({ area: 'guest', state: 'not checked', message: '' });
  const answers = condition('GuestAgentConnected', 'True', 'Connected');
  const answering = diagnose(runs(condition('Ready', 'True', 'Running', UNCHECKED_GUEST), answers));
  expect(answering).toMatchObject({ message: 'VM mac runs. Nothing is wrong' });
  expect(answering.checks).toContainEqual({ area: 'guest', state: 'ok', message: '' });
});
