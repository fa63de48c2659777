import { expect, it } from 'vitest';
import { DEDICATED_KEY, HOST_KEY, HOST_MARK } from '../../api/v1alpha1/names.ts';
import type { Job, Node } from '../../kube/core.ts';
import { hostOfJob, hostPodSpec, namespaceOfHost, type Placement } from './placement.ts';

function specOf(placement: Placement) {
  return hostPodSpec({ placement, tolerations: [], pullSecrets: [], priorityClassName: 'none' });
}

function termsOf(placement: Placement) {
  const { nodeAffinity } = specOf(placement).affinity ?? {};
  return nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms ?? [];
}

it('a namespace may use hosts for everybody and its own hosts, and only the mark of a host counts', () => {
  const mark = { key: HOST_MARK, operator: 'In', values: ['true'] };
  const arch = { key: 'kubernetes.io/arch', operator: 'In', values: ['arm64'] };
  expect(termsOf({ dedicatedTo: 'platform-ci', architecture: 'arm64' })).toEqual([
    { matchExpressions: [mark, arch, { key: DEDICATED_KEY, operator: 'DoesNotExist' }] },
    { matchExpressions: [mark, arch, { key: DEDICATED_KEY, operator: 'In', values: ['platform-ci'] }] },
  ]);
  expect(termsOf({ dedicatedTo: 'platform-ci', isStrict: true })).toEqual([
    { matchExpressions: [mark, { key: DEDICATED_KEY, operator: 'In', values: ['platform-ci'] }] },
  ]);
  expect(termsOf({ dedicatedTo: '*' })).toEqual([
    { matchExpressions: [mark, { key: 'berth.dev/only-namespace', operator: 'DoesNotExist' }] },
  ]);
});

it('hosts are tolerated, and so are dedicated hosts of the namespace or all of them', () => {
  const host = { key: HOST_KEY, operator: 'Equal', value: 'true', effect: 'NoSchedule' };
  const dedicated = { key: DEDICATED_KEY, effect: 'NoSchedule' };
  expect(specOf({ dedicatedTo: 'platform-ci' }).tolerations).toEqual([
    host,
    { ...dedicated, operator: 'Equal', value: 'platform-ci' },
  ]);
  expect(specOf({ dedicatedTo: '*' }).tolerations).toEqual([host, { ...dedicated, operator: 'Exists' }]);
});

it('other hosts are preferred to those where the work failed, and of these the one that failed longest ago', () => {
  const failedNodes = ['last', 'before', ...Array.from({ length: 20 }, (_, index) => `older${index}`)];
  const { nodeAffinity } = specOf({ dedicatedTo: 'platform-ci', failedNodes }).affinity ?? {};
  const preferences = nodeAffinity?.preferredDuringSchedulingIgnoredDuringExecution ?? [];
  expect(preferences.map(({ weight }) => weight)).toEqual([100, 50, 25, 12, 6, 3, 1]);
  expect(preferences.slice(0, 2).map(({ preference }) => preference.matchFields)).toEqual([
    [{ key: 'metadata.name', operator: 'NotIn', values: ['last'] }],
    [{ key: 'metadata.name', operator: 'NotIn', values: ['before'] }],
  ]);
  expect(JSON.stringify(termsOf({ dedicatedTo: 'platform-ci', failedNodes }))).not.toContain('last');
});

it('the host of a Job is read from where it was written', () => {
  const jobFor = (placement: Placement) =>
    ({ spec: { template: { spec: { ...specOf(placement), containers: [] } } } }) as unknown as Job;
  expect(hostOfJob(jobFor({ dedicatedTo: '*', nodeName: 'mac1' }))).toEqual(['mac1']);
  expect(hostOfJob(jobFor({ dedicatedTo: '*' }))).toEqual([]);
});

it('a Node counts for the namespace of its hosts only with the mark of a host', () => {
  const node = (labels: Record<string, string>): Node => ({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'rack', labels },
  });
  const own = { [DEDICATED_KEY]: 'platform-ci' };
  expect(namespaceOfHost(node({ ...own, [HOST_MARK]: 'true' }))).toEqual(['platform-ci']);
  expect(namespaceOfHost(node(own))).toEqual([]);
  expect(namespaceOfHost(node({ [HOST_MARK]: 'true' }))).toEqual([]);
});
