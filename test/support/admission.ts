/** Checks of the API server's answers to manifests, which are sent by kubectl as people send them. */
import { expect } from 'vitest';
import { HOST_MARK, HOST_VALUE, SYSTEM_NAMESPACE, WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { KubectlResult } from '../../hack/cluster/kubectl.ts';
import { waitFor } from '../../hack/wait.ts';

export const OPERATOR_USER = `system:serviceaccount:${SYSTEM_NAMESPACE}:berth-operator`;

/** Arguments of kubectl that name the user of a request. */
export type As = readonly string[];
export const AS_ADMIN: As = [];
export const AS_OPERATOR: As = [`--as=${OPERATOR_USER}`];

/** Parts of a Pod that only the operator is allowed to set. */
export const SLOT = { resources: { requests: { 'berth.dev/slot': '1' }, limits: { 'berth.dev/slot': '1' } } };
export const HOST_TOLERATION = { key: 'berth.dev/host', operator: 'Exists', effect: 'NoSchedule' };

/** The parts of every Pod of the operator by which the operator's admission policy recognizes the Pod. */
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

/** Returns a machine's Pod as the operator writes it, but without a finalizer. The Pod is therefore deleted with its namespace. */
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
      // No node has this label, so the Pod stays Pending wherever the test runs.
      nodeSelector: { 'example.com/nowhere': '' },
      tolerations: [HOST_TOLERATION],
      containers: [{ name: 'machine', image: 'example.com/none', resources }],
    },
  });
}

/**
 * Parts of a Pod beside its metadata that command a host. Each entry has a description, the parts, and a text that the refusal
 * contains.
 */
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
 * Asks the API server's authorizer whether `who` has the right for an action, for example `create pods -n NAMESPACE`. The authorizer learns
 * of new permissions shortly after they are stored, in the order of their creation.
 */
export async function isAllowed(cluster: Cluster, who: As, what: readonly string[]): Promise<boolean> {
  const { stdout } = await cluster.kubectl(['auth', 'can-i', ...what, ...who], { allowFailure: true });
  return stdout.trim() === 'yes';
}

/** Waits until `who` has the right for the action. @throws Error when the permission is not known in time. */
export async function untilAllowed(cluster: Cluster, who: As, what: readonly string[]): Promise<void> {
  await waitFor(`the right to ${what.join(' ')} to be known`, () => isAllowed(cluster, who, what));
}

export interface Admission {
  /** Expects that one of Berth's policies refuses the manifest with a message that contains all of `says`. */
  readonly expectRefused: (manifest: string, as: As, ...says: string[]) => Promise<void>;
  /** Expects that the whole admission accepts the manifest, without storing it. */
  readonly expectAccepted: (manifest: string, as: As) => Promise<void>;
  readonly expectCreated: (manifest: string, as: As) => Promise<void>;
  /** Sends a merge patch of `KIND NAME -n NAMESPACE`. */
  readonly patch: (target: readonly string[], as: As, body: object) => Promise<KubectlResult>;
}

/** Returns the checks for a cluster. `cluster` is a function, because the set-up creates the cluster after the test file is read. */
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
