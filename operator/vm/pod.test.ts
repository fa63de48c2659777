import { describe, expect, it } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { MACHINE_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import { parseConfig } from '../config/config.ts';
import type { Observed } from './observe.ts';
import { buildPod } from './pod.ts';
import { isUnresolved, resolve } from './resolve.ts';

const config = parseConfig({}, 'test');
let deployments = 0;

interface Deployment {
  cluster?: string;
  namespace?: string;
  name?: string;
  spec?: Partial<VMSpec>;
}

/** Returns the hardware identity of one deployment. Each VM has its own uid, even when an earlier VM had the same name. */
function hardwareOf({ cluster = 'one', namespace = 'platform-ci', name = 'build', spec = {} }: Deployment) {
  deployments += 1;
  const vm = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name, namespace, uid: `uid-${deployments}` },
    spec: { image: 'registry.example/guest:1', ...spec },
  };
  const lookups = { vmConfig: () => undefined, image: () => undefined, iso: () => undefined };
  const resolved = resolve({ vm, lookups, config } as unknown as Observed);
  if (isUnresolved(resolved)) {
    throw new Error(resolved.message);
  }
  const random = (): string => String(deployments).repeat(64);
  const pod = buildPod({ vm, resolved, attempt: 1, avoidedNodes: [], config, clusterUid: cluster, random });
  return (JSON.parse(pod.metadata.annotations?.[MACHINE_ANNOTATION] ?? '') as Machine).hardware;
}

describe('hardware identity', () => {
  it('is the same on each deployment of a name in its namespace, and no other has it', () => {
    const hardware = hardwareOf({});
    expect(hardwareOf({})).toEqual(hardware);
    expect(hardware.macAddress).toMatch(/^02(:[0-9a-f]{2}){5}$/);
    for (const other of [{ name: 'other' }, { namespace: 'platform-qa' }, { cluster: 'two' }]) {
      const { uuid, serialNumber, macAddress } = hardwareOf(other);
      expect([uuid, serialNumber, macAddress]).not.toContain(hardware.uuid);
      expect(serialNumber).not.toBe(hardware.serialNumber);
      expect(macAddress).not.toBe(hardware.macAddress);
    }
  });

  it('is new on each deployment when it is Dynamic', () => {
    const spec = { hardwareIdentity: 'Dynamic' } as const;
    expect(hardwareOf({ spec }).macAddress).not.toBe(hardwareOf({ spec }).macAddress);
  });
});
