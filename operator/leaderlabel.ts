/** Labels the Pod that leads, so that the Service of the metrics leads to it alone: only the leader knows the numbers of VMs. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { LEADER_LABEL } from '../api/v1alpha1/names.ts';
import type { KubeClient } from '../kube/client.ts';
import { Controller } from '../kube/controller.ts';
import { PODS } from '../kube/core.ts';

export interface LeaderLabelOptions {
  /** May write while this process does not lead. */
  client: KubeClient;
  /** Of this process. */
  pod: { namespace: string; name: string };
  isLeader: () => boolean;
  metrics: Registry;
  logger: Logger;
}

/**
 * Has one key, the Pod's name, to be enqueued at the start and when leading begins: a process that led and crashed starts
 * again in the same Pod, as a standby.
 */
export function leaderLabel({ client, pod, isLeader, metrics, logger }: LeaderLabelOptions): Controller {
  return new Controller({
    name: 'leader-label',
    workers: 1,
    reconcile: async () => {
      const labels = { [LEADER_LABEL]: isLeader() ? 'true' : null };
      await client.mergePatch(PODS, pod, { metadata: { labels } });
      return undefined;
    },
    logger,
    metrics,
  });
}
