import { expect, it } from 'vitest';
import { AWAITED_ANNOTATION, DEDICATED_KEY, HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import type { Node } from '../../kube/core.ts';
import { recordOf } from './records.ts';

const LARGEST = 4_096;
const kept = { [HOST_MARK]: HOST_VALUE, [DEDICATED_KEY]: 'platform-ci' };
const tags = Object.fromEntries(
  Array.from({ length: 200 }, (_, at) => [`tag.berth.dev/${'x'.repeat(50)}-${at}`, '']),
);
const taint = { key: 'example.com/maintenance', value: 'soon', effect: 'NoSchedule' as const };

function node(labels: Record<string, string>, awaited: string, taints = [taint]): Node {
  const metadata = { name: 'rack', uid: 'u', labels, annotations: { [AWAITED_ANNOTATION]: awaited } };
  return { apiVersion: 'v1', kind: 'Node', metadata, spec: { unschedulable: true, taints } };
}

it.each([
  ['tags', node({ ...kept, ...tags }, '{}'), { labels: kept, taints: [taint], awaited: '{}' }],
  ['awaited VMs', node(kept, 'x'.repeat(LARGEST)), { labels: kept, taints: [taint] }],
  [
    'taints',
    node(
      kept,
      '{}',
      Array.from({ length: 200 }, () => taint),
    ),
    { labels: kept, taints: [] },
  ],
])(
  'a host that writes too many %s keeps its mark, dedication and cordon in a small record',
  (_, large, rest) => {
    const record = recordOf(large);
    expect(record).toEqual({ nodeUid: 'u', unschedulable: true, ...rest });
    expect(JSON.stringify(record).length).toBeLessThanOrEqual(LARGEST);
  },
);
