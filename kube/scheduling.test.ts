import { expect, it } from 'vitest';
import type { Node, NodeSelectorTerm, Taint } from './core.ts';
import { CORDON_TAINT, isOpenFor, type Placing, suits } from './scheduling.ts';

function node(
  labels: Record<string, string>,
  taints: Taint[] = [],
  status = 'True',
  unschedulable = false,
): Node {
  const conditions = [{ type: 'Ready', status }];
  return {
    metadata: { name: 'rack', labels },
    spec: { taints, unschedulable },
    status: { conditions },
  } as unknown as Node;
}

function terms(...nodeSelectorTerms: NodeSelectorTerm[]): Placing {
  return {
    affinity: { nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms } } },
  };
}

const FAST: NodeSelectorTerm = { matchExpressions: [{ key: 'fast', operator: 'Exists' }] };
const NEW: NodeSelectorTerm = { matchExpressions: [{ key: 'new', operator: 'NotIn', values: ['no'] }] };

it.each<[string, Placing, boolean]>([
  ['nothing', {}, true],
  ['all labels of a node selector', { nodeSelector: { fast: 'yes', new: 'no' } }, true],
  ['another value of a label', { nodeSelector: { fast: 'no' } }, false],
  ['one of two terms', terms(NEW, FAST), true],
  ['a term that no label meets', terms(NEW), false],
  ['a term without requirements, which selects nothing', terms({}), false],
  ['the name', terms({ matchFields: [{ key: 'metadata.name', operator: 'In', values: ['rack'] }] }), true],
  ['a label besides the right term', { ...terms(FAST), nodeSelector: { fast: 'no' } }, false],
])('a Node with labels suits a Pod that asks for %s: %j is %s', (_name, placing, isSuited) => {
  expect(suits(placing, node({ fast: 'yes', new: 'no' }))).toBe(isSuited);
});

it.each<[string, Node, boolean, boolean]>([
  ['reports', node({}), true, true],
  ['does not report', node({}, [], 'Unknown'), true, false],
  ['is cordoned', node({}, [CORDON_TAINT], 'True', true), true, false],
  ['is about to open', node({}, [CORDON_TAINT]), true, false],
  ['has a taint that the Pod tolerates', node({}, [{ key: 'host', effect: 'NoSchedule' }]), true, true],
  [
    'has a taint that the Pod does not tolerate',
    node({}, [{ key: 'repair', effect: 'NoExecute' }]),
    false,
    false,
  ],
  ['is not preferred', node({}, [{ key: 'repair', effect: 'PreferNoSchedule' }]), true, true],
])('a Node that %s suits: %s, and is open: %s', (_name, one, isSuited, isOpen) => {
  const placing: Placing = { tolerations: [{ key: 'host', operator: 'Exists' }] };
  expect([suits(placing, one), isOpenFor(placing, one)]).toEqual([isSuited, isOpen]);
});
