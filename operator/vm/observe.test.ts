import { pino } from 'pino';
import { expect, test } from 'vitest';
import { Store } from '../../kube/cache.ts';
import type { Pod } from '../../kube/core.ts';
import { awaitedPorts, PODS_BY_AWAITED_PORT, waitingForPortsOf } from './observe.ts';

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

test('of all Pods with the same port, only those without a host are found', () => {
  const bound = podOf('bound', 'a');
  const cache = new Store<Pod>(pino({ level: 'silent' }), { [PODS_BY_AWAITED_PORT]: awaitedPorts });
  [bound, podOf('elsewhere', 'b'), podOf('waiting')].forEach((pod) => cache.put(pod));
  const names = (pods: readonly Pod[]) => pods.map(({ metadata }) => metadata.name);
  expect(names(cache.byIndex(PODS_BY_AWAITED_PORT, '8822/TCP'))).toEqual(['waiting']);
  expect(names(waitingForPortsOf(bound, cache))).toEqual(['waiting']);
});
