import { describe, expect, it } from 'vitest';
import {
  DESIRED_ANNOTATION,
  MACHINE_ANNOTATION,
  MACHINE_CONTAINER,
  POD_FINALIZER,
} from '../../api/v1alpha1/names.ts';
import { parseConfig } from '../config/config.ts';
import { untilNextDeadline } from './deadlines.ts';
import type { VMFacts } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { deleteMachine, deploy, desire, ensureVncSecret, finish } from './steps.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import type { Pod } from '../../kube/core.ts';
import type { ObjectMeta } from '../../kube/objects.ts';

const FACTS: VMFacts = {
  firstRunningTime: '2030-01-01T00:00:00Z',
  attempt: 1,
  avoidedNodes: [],
  failure: undefined,
};
const UNTIL = '2030-01-01T01:00:00Z';

/** Returns a running VM with this life, at `now`. */
function observed(aliveUntil: string, now: string): ObservedVM {
  const vm = {
    metadata: { name: 'x' },
    spec: { aliveUntil },
    status: { firstRunningTime: FACTS.firstRunningTime },
  };
  return { vm, config: parseConfig({}, 'test'), now: Date.parse(now) } as unknown as ObservedVM;
}

describe('a VM whose life nobody prolongs', () => {
  it('is deleted once the time has passed, although it runs', () => {
    const [write] = finish(observed(UNTIL, UNTIL), FACTS).writes;
    expect(write).toEqual({ kind: 'deleteVM', aliveUntil: Date.parse(UNTIL) });
  });

  it('stays until then, and is looked at again at that time', () => {
    const before = observed('2030-01-01T02:00:00+01:00', '2030-01-01T00:59:59.250Z');
    expect(finish(before, FACTS).writes).toEqual([]);
    expect(untilNextDeadline(before, FACTS)).toBe(750);
  });

  it.each(['', '0', 'soon', '2029', '2029-02-30T00:00:00Z'])('stays if the time is no time: "%s"', (text) => {
    expect(finish(observed(text, '2031-01-01T00:00:00Z'), FACTS).writes).toEqual([]);
  });
});

describe('the Pod of a deleted VM', () => {
  const TIME = UNTIL;

  /** Returns the requests if the VM has this grace period, and `metadata` is that of its Pod. */
  function writesOf(terminationGracePeriodSeconds: number | undefined, metadata: Partial<ObjectMeta> = {}) {
    const pod = {
      metadata: { name: 'x', finalizers: [POD_FINALIZER], ...metadata },
      spec: { nodeName: 'host', containers: [] },
      status: { phase: 'Running' },
    };
    const vm = { metadata: { name: 'x', deletionTimestamp: TIME }, spec: { terminationGracePeriodSeconds } };
    return deleteMachine({ vm, pod, node: {} } as unknown as ObservedVM).writes;
  }

  it.each([
    [undefined, 1],
    [0, 1],
    [90, 90],
  ])('is deleted with the grace period of the VM, %s, and never with 0', (seconds, graceSeconds) => {
    expect(writesOf(seconds)).toEqual([{ kind: 'deletePod', graceSeconds }]);
  });

  it('that is already being deleted gets the shorter of the two periods', () => {
    const leaving = (deletionGracePeriodSeconds: number) => ({
      deletionTimestamp: TIME,
      deletionGracePeriodSeconds,
    });
    expect(writesOf(undefined, leaving(30))).toEqual([{ kind: 'deletePod', graceSeconds: 1 }]);
    expect(writesOf(undefined, leaving(1))).toEqual([]);
    expect(writesOf(90, leaving(30))).toEqual([]);
  });

  it('that was deleted by force is told the grace period of the VM', () => {
    const [write] = writesOf(7, { deletionTimestamp: TIME, deletionGracePeriodSeconds: 0 });
    expect(write).toMatchObject({ kind: 'patchDesired', text: '{"deletion":{"graceSeconds":7}}' });
  });
});

describe('the desired size of a disk', () => {
  const GIB = 1024 ** 3;
  const FACTS: VMFacts = { firstRunningTime: undefined, attempt: 1, avoidedNodes: [], failure: undefined };

  /** Returns the GiB that a host is told for the disk, if the VMConfig sets 8 GiB and the VM later sets `diskSize`. */
  function waitAfter(diskSize: string): number | undefined {
    const before: Desired = {
      powerState: 'Running',
      restartPolicy: 'Never',
      cpu: 2,
      memoryBytes: GIB,
      diskSizeBytes: 8 * GIB,
    };
    const pod = {
      metadata: { annotations: { [DESIRED_ANNOTATION]: JSON.stringify(before) } },
      spec: { containers: [] },
    };
    const { writes } = desire(
      { vm: { metadata: {}, spec: { diskSize } }, pod, snapshots: [] } as unknown as ObservedVM,
      FACTS,
    );
    const [write] = writes;
    const reported = write?.kind === 'patchDesired' ? (JSON.parse(write.text) as Desired) : before;
    return reported.diskSizeBytes && reported.diskSizeBytes / GIB;
  }

  it('a VM makes the disk larger than its VMConfig does, but never smaller', () => {
    expect(waitAfter('9Gi')).toBe(9);
    expect(waitAfter('4Gi')).toBe(8);
  });
});

describe('the Secret with the VNC password', () => {
  const FACTS: VMFacts = { firstRunningTime: undefined, attempt: 1, avoidedNodes: [], failure: undefined };
  const config = parseConfig({}, 'test');

  function observed(spec: VMSpec, random: string): ObservedVM {
    const metadata = { name: 'desk', namespace: 'platform-ci', uid: 'vm' };
    const vm = {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata,
      spec: { image: 'r.example/g:1', ...spec },
    };
    return {
      vm,
      config,
      lookups: { credentials: () => undefined },
      isDedicated: () => false,
      clusterUid: '',
      random: () => random.repeat(32),
    } as unknown as ObservedVM;
  }

  /** Returns the observed state with the VM's Pod, which waits for the reason on its host. */
  function waits(state: ObservedVM, reason: string): ObservedVM {
    const pod = deploy(state, FACTS).writes.find((write) => write.kind === 'createPod')?.pod as Pod;
    const container = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0 };
    const status = { containerStatuses: [{ ...container, state: { waiting: { reason } } }] };
    expect(pod.metadata.annotations).toHaveProperty([MACHINE_ANNOTATION]);
    return { ...state, pod: { ...pod, status } };
  }

  it('a VM with vnc.hostPort has a Secret with a password of eight characters, before its Pod', () => {
    const { writes } = deploy(observed({ vnc: { hostPort: true } }, 'fa'), FACTS);
    expect(writes).toMatchObject([
      {
        kind: 'createSecret',
        secret: {
          metadata: {
            name: 'desk-vnc',
            namespace: 'platform-ci',
            ownerReferences: [{ kind: 'VM', uid: 'vm' }],
          },
          type: 'berth.dev/vnc',
          stringData: { password: '-vr6-vr6' },
        },
      },
      {
        kind: 'createPod',
        pod: { spec: { volumes: [{ name: 'disk' }, { secret: { secretName: 'desk-vnc' } }] } },
      },
    ]);
    expect(deploy(observed({}, 'fa'), FACTS).writes.map(({ kind }) => kind)).toEqual(['createPod']);
  });

  it('the Secret is created again while its host misses it, and only then', () => {
    const state = observed({ vnc: { hostPort: true } }, '00');
    const again = ensureVncSecret(waits(state, 'VNCSecretNotFound'), FACTS);
    expect(again.writes.map(({ kind }) => kind)).toEqual(['createSecret']);
    expect(again.outcome.kind).toBe('requeueAfter');
    const nothing = { writes: [], outcome: { kind: 'done' } };
    expect(ensureVncSecret(waits(state, 'Pulling'), FACTS)).toEqual(nothing);
    expect(ensureVncSecret(waits(observed({}, '00'), 'VNCSecretNotFound'), FACTS)).toEqual(nothing);
    const failure = { reason: 'DeployTimeout', message: '', time: '' };
    expect(ensureVncSecret(waits(state, 'VNCSecretNotFound'), { ...FACTS, failure })).toEqual(nothing);
  });
});
