import { describe, expect, it } from 'vitest';
import {
  CORDONED_FOR_ANNOTATION,
  DEDICATED_KEY,
  HOST_KEY,
  HOST_MARK,
  HOST_VALUE,
  SLOT_RESOURCE,
} from '../../api/v1alpha1/names.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { hostPodSpec, type Placement } from '../tasks/placement.ts';
import { choose, fits, placeOn, take } from './places.ts';

const TAG = { key: 'tag.berth.dev/fast', operator: 'Exists' } as const;

function host(
  change: { labels?: Record<string, string>; taints?: NonNullable<Node['spec']>['taints'] } = {},
): Node {
  const labels = { [HOST_MARK]: HOST_VALUE, 'kubernetes.io/arch': 'amd64', ...change.labels };
  const taint = { key: HOST_KEY, value: HOST_VALUE, effect: 'NoSchedule' } as const;
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'rack', labels },
    spec: { taints: [taint, ...(change.taints ?? [])] },
    status: { allocatable: { [SLOT_RESOURCE]: '2', cpu: '7500m', memory: '16Gi' } },
  };
}

function pod(
  placement: Partial<Placement> = {},
  requests: Record<string, string> = {},
  hostPort?: number,
): Pod {
  const spec = hostPodSpec({
    placement: { dedicatedTo: 'platform-ci', ...placement },
    tolerations: [],
    pullSecrets: [],
    priorityClassName: '',
  });
  const all = { [SLOT_RESOURCE]: '1', cpu: '2', memory: '4Gi', ...requests };
  const ports = hostPort === undefined ? [] : [{ containerPort: hostPort, hostPort }];
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'vm', namespace: 'platform-ci' },
    spec: { ...spec, containers: [{ name: 'machine', image: '', resources: { requests: all }, ports }] },
  };
}

describe('a host suits a VM', () => {
  const own = { labels: { [DEDICATED_KEY]: 'platform-ci' } };
  const ofOthers = { labels: { [DEDICATED_KEY]: 'platform-qa' } };
  const taintOf = (value: string) => ({ key: DEDICATED_KEY, value, effect: 'NoSchedule' as const });
  it.each([
    ['a shared host', host(), {}, true],
    ['its architecture', host(), { architecture: 'amd64' }, true],
    ['another architecture', host(), { architecture: 'arm64' }, false],
    ['its namespace', host({ ...own, taints: [taintOf('platform-ci')] }), {}, true],
    ['another namespace', host({ ...ofOthers, taints: [taintOf('platform-qa')] }), {}, false],
    ['the required host', host(), { nodeName: 'rack' }, true],
    ['another required host', host(), { nodeName: 'tower' }, false],
    ['a host that refused it', host(), { avoidedNodes: ['rack'] }, false],
    ['a required tag', host({ labels: { 'tag.berth.dev/fast': '' } }), { required: [TAG] }, true],
    ['no required tag', host(), { required: [TAG] }, false],
    ['a taint of an administrator', host({ taints: [{ key: 'repair', effect: 'NoSchedule' }] }), {}, false],
    [
      'the taints of a host that is off',
      host({
        taints: [
          { key: 'node.kubernetes.io/unreachable', effect: 'NoSchedule' },
          { key: 'node.kubernetes.io/unschedulable', effect: 'NoSchedule' },
        ],
      }),
      {},
      true,
    ],
    ['no mark of a host', host({ labels: { [HOST_MARK]: 'no' } }), {}, false],
  ] as const)('by %s', (_name, node, placement, isSuited) => {
    expect(fits(placeOn(node, []), pod(placement as Partial<Placement>))).toBe(isSuited);
  });
});

describe('the space of a host', () => {
  it('is what its Pods leave of each resource', () => {
    const place = placeOn(host(), [pod({}, { cpu: '1500m' })]);
    expect(fits(place, pod({}, { cpu: '6' }))).toBe(true);
    expect(fits(place, pod({}, { cpu: '6001m' }))).toBe(false);
    expect(fits(place, pod({}, { memory: '13Gi' }))).toBe(false);
    expect(fits(place, pod({}, { 'berth.dev/macos-guest': '1' }))).toBe(false);
  });

  it('does not count ended Pods, and ends with the last slot', () => {
    const place = placeOn(host(), [{ ...pod(), status: { phase: 'Failed' } }]);
    expect([take([place], pod()), take([place], pod()), take([place], pod())]).toEqual([true, true, false]);
  });

  it('has each host port once', () => {
    const place = placeOn(host(), [pod({}, {}, 8822)]);
    expect(fits(place, pod({}, {}, 8822))).toBe(false);
    expect(fits(place, pod({}, {}, 8823))).toBe(true);
  });
});

it('a Pod that is already named for a host that opens keeps its space there', () => {
  const named = (name: string, status: Pod['status'] = {}): Pod => ({ ...pod(), metadata: { name }, status });
  const opening = {
    ...host(),
    metadata: { ...host().metadata, annotations: { [CORDONED_FOR_ANNOTATION]: 'rack' } },
  };
  const waiting = [named('first'), named('second'), named('before', { nominatedNodeName: 'rack' })];
  const chosen = choose(placeOn(opening, []), waiting, () => opening);
  expect(chosen.map(({ metadata }) => metadata.name)).toEqual(['first']);
});

it('the free space of a host that opens is for the first Pods that fit and are expected nowhere else', () => {
  const named = (name: string, change: Partial<Pod> = {}): Pod => ({
    ...pod(),
    metadata: { name, namespace: 'platform-ci' },
    ...change,
  });
  const waiting = [
    named('elsewhere', { status: { nominatedNodeName: 'tower' } }),
    named('large', { spec: pod({}, { memory: '17Gi' }).spec }),
    named('first', { status: { nominatedNodeName: '' } }),
    named('second'),
    named('third'),
  ];
  const chosen = (tower: Node | undefined) =>
    choose(placeOn(host(), []), waiting, (name) => (name === 'tower' ? tower : undefined)).map(
      ({ metadata }) => metadata.name,
    );
  const conditions = [{ type: 'Ready', status: 'True' as const }];
  const tower = { ...host(), status: { conditions } };
  const cordoned = { ...tower, spec: { unschedulable: true } };
  const opening = {
    ...cordoned,
    metadata: { name: 'tower', annotations: { [CORDONED_FOR_ANNOTATION]: 'tower' } },
  };
  expect(chosen(tower)).toEqual(['first', 'second']);
  expect(chosen(opening)).toEqual(['first', 'second']);
  // A host that can take the Pod no more keeps it from no other host.
  for (const gone of [undefined, host(), cordoned]) {
    expect(chosen(gone)).toEqual(['elsewhere', 'first']);
  }
});
