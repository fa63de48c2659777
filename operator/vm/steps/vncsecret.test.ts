import { expect, it } from 'vitest';
import { MACHINE_ANNOTATION, MACHINE_CONTAINER } from '../../../api/v1alpha1/names.ts';
import type { VMSpec } from '../../../api/v1alpha1/vm.ts';
import type { Pod } from '../../../kube/core.ts';
import { parseConfig } from '../../config/config.ts';
import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { deploy } from './deploy.ts';
import { ensureVncSecret } from './vncsecret.ts';

const FACTS: Facts = { firstRunningTime: undefined, attempt: 1, avoidedNodes: [], failure: undefined };
const config = parseConfig({}, 'test');

function observed(spec: VMSpec, random: string): Observed {
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
    clusterUid: '',
    random: () => random.repeat(32),
  } as unknown as Observed;
}

/** Returns the observed state with the VM's Pod, which waits for the reason on its host. */
function waits(state: Observed, reason: string): Observed {
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
