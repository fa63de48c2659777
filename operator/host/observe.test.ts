import { expect, it } from 'vitest';
import type { Node } from '../../kube/core.ts';
import { trimNode } from './observe.ts';

it('takes a Node with an image without names, which any node can report for itself', () => {
  const metadata = { name: 'rack' };
  const images = [
    { names: null, sizeBytes: 1 },
    { names: ['registry.example/guest:1'], sizeBytes: 2 },
  ];
  const node: Node = { apiVersion: 'v1', kind: 'Node', metadata, status: { images } };
  expect(trimNode(node).status?.images).toEqual([{ names: [] }, { names: ['registry.example/guest:1'] }]);
});
