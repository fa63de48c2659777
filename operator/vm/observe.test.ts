import { expect, test } from 'vitest';
import type { Pod } from '../../kube/core.ts';
import { waitingForPortsOf } from './observe.ts';

function podOf(name: string, nodeName?: string): Pod {
  const ports = [{ hostPort: 8822, containerPort: 8822 }];
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name },
    spec: {
      ...(nodeName !== undefined && { nodeName }),
      containers: [{ name: 'machine', image: 'i', ports }],
    },
  };
}

test('of all Pods with the same port, only those without a host wait for it', () => {
  const bound = podOf('bound', 'a');
  const pods = [bound, podOf('elsewhere', 'b'), podOf('waiting')];
  const asked: string[] = [];
  const waiting = waitingForPortsOf(bound, {
    byIndex: (_, port) => {
      asked.push(port);
      return pods;
    },
  });
  expect(asked).toEqual(['8822/TCP']);
  expect(waiting.map(({ metadata }) => metadata.name)).toEqual(['waiting']);
});
