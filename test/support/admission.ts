/** What the API server says to a manifest of somebody's, by kubectl as people send it. */
import { expect } from 'vitest';
import { HOST_MARK, HOST_VALUE, SYSTEM_NAMESPACE, WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { KubectlResult } from '../../hack/cluster/kubectl.ts';
import { waitFor } from '../../hack/wait.ts';

export const OPERATOR_USER = `system:serviceaccount:${SYSTEM_NAMESPACE}:berth-operator`;

/** Arguments of kubectl that say who asks. */
export type As = readonly string[];
export const AS_ADMIN: As = [];
export const AS_OPERATOR: As = [`--as=${OPERATOR_USER}`];

/** Parts of a Pod that only the operator may ask for. */
export const SLOT = { resources: { requests: { 'berth.dev/slot': '1' }, limits: { 'berth.dev/slot': '1' } } };
export const HOST_TOLERATION = { key: 'berth.dev/host', operator: 'Exists', effect: 'NoSchedule' };

/** What every Pod of the operator has, by which its policy knows it. */
export const OPERATORS_OWN = {
  labels: { [WORKLOAD_LABEL]: 'vm' },
  spec: {
    automountServiceAccountToken: false,
    affinity: {
      nodeAffinity: {
        requiredDuringSchedulingIgnoredDuringExecution: {
          nodeSelectorTerms: [
            { matchExpressions: [{ key: HOST_MARK, operator: 'In' as const, values: [HOST_VALUE] }] },
          ],
        },
      },
    },
  },
};

/** A machine's Pod as the operator writes it, without its finalizer, so that it goes with its namespace. */
export function machinePod(namespace: string, name: string): string {
  const { requests, limits } = SLOT.resources;
  const resources = { requests: { cpu: '1', memory: '1Gi', ...requests }, limits };
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name,
      namespace,
      labels: OPERATORS_OWN.labels,
      annotations: { 'berth.dev/machine': '{}', 'berth.dev/desired': '{}' },
    },
    spec: {
      ...OPERATORS_OWN.spec,
      // No node has this label: the Pod stays Pending wherever the test runs.
      nodeSelector: { 'example.com/nowhere': '' },
      tolerations: [HOST_TOLERATION],
      containers: [{ name: 'machine', image: 'example.com/none', resources }],
    },
  });
}

/** What of a Pod commands a host beside its metadata: in words, the parts, and what a refusal names. */
export const COMMANDING_SPECS: readonly [string, { container?: object; spec?: object }, string][] = [
  ['a slot', { container: SLOT }, 'berth.dev/'],
  [
    'a slot in an init container',
    { spec: { initContainers: [{ name: 'i', image: 'i', ...SLOT }] } },
    'berth.dev/',
  ],
  ['the host toleration', { spec: { tolerations: [HOST_TOLERATION] } }, 'berth.dev/host'],
];

/**
 * Whether `who` may do it, such as `create pods -n NAMESPACE`, by the API server's own authorizer, which hears of rights a little
 * after they are stored, in the order of their making.
 */
export async function isAllowed(cluster: Cluster, who: As, what: readonly string[]): Promise<boolean> {
  const { stdout } = await cluster.kubectl(['auth', 'can-i', ...what, ...who], { allowFailure: true });
  return stdout.trim() === 'yes';
}

/** @throws Error when it is not so in time. */
export async function untilAllowed(cluster: Cluster, who: As, what: readonly string[]): Promise<void> {
  await waitFor(`the right to ${what.join(' ')} to be known`, () => isAllowed(cluster, who, what));
}

export interface Admission {
  /** By one of our policies, in words with all of `says` in them. */
  readonly expectRefused: (manifest: string, as: As, ...says: string[]) => Promise<void>;
  /** Through the whole of admission, without storing it. */
  readonly expectAccepted: (manifest: string, as: As) => Promise<void>;
  readonly expectCreated: (manifest: string, as: As) => Promise<void>;
  /** A merge patch of `KIND NAME -n NAMESPACE`. */
  readonly patch: (target: readonly string[], as: As, body: object) => Promise<KubectlResult>;
}

/** `cluster` is asked for when it is needed: set-up makes it later than files are read. */
export function admissionOf(cluster: () => Cluster): Admission {
  const create = (manifest: string, as: As, ...more: string[]) =>
    cluster().kubectl(['create', ...as, ...more, '-f', '-'], { input: manifest, allowFailure: true });

  async function expectCreated(manifest: string, as: As, ...more: string[]): Promise<void> {
    const { code, stderr } = await create(manifest, as, ...more);
    expect({ code, stderr }).toMatchObject({ code: 0 });
  }

  return {
    async expectRefused(manifest, as, ...says) {
      const { code, stderr } = await create(manifest, as);
      expect(code, 'the API server accepted it').not.toBe(0);
      expect(stderr).toMatch(/ValidatingAdmissionPolicy 'berth-[a-z-]+'/);
      for (const part of says) {
        expect(stderr).toContain(part);
      }
    },
    expectAccepted: (manifest, as) => expectCreated(manifest, as, '--dry-run=server'),
    expectCreated,
    patch(target, as, body) {
      const patch = ['--type=merge', '-p', JSON.stringify(body)];
      return cluster().kubectl(['patch', ...target, ...patch, ...as], { allowFailure: true });
    },
  };
}
