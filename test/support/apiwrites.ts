/** What was written to the API server, by its own count. */
import type { Cluster } from '../cluster/index.ts';
import { waitFor } from './wait.ts';

const WRITES = new Set(['POST', 'PUT', 'PATCH', 'APPLY', 'DELETE']);
/** Leases and heartbeats of hosts go on for ever. */
const ALLOWED = new Set(['leases', 'nodes']);
/** Between two looks, and how many of them in a row see nothing new: one may fall into a moment in which the machine stands still. */
const LOOK_MILLISECONDS = 2_000;
const QUIET_LOOKS = 3;
/** Events are told some seconds after what they tell of. */
const SETTLE_MILLISECONDS = 60_000;

/** Requests that changed something, by resource, since the API server started. */
export async function writesByResource(cluster: Cluster): Promise<Map<string, number>> {
  const { body } = await cluster.client().raw('GET', '/metrics');
  const counts = new Map<string, number>();
  for (const line of String(body).split('\n')) {
    const match = /^apiserver_request_total\{(.*)\} (\S+)$/.exec(line);
    const [, labels = '', value = '0'] = match ?? [];
    const verb = /verb="([A-Z]+)"/.exec(labels)?.[1] ?? '';
    const resource = /resource="([^"]*)"/.exec(labels)?.[1] ?? '';
    if (WRITES.has(verb)) counts.set(resource, (counts.get(resource) ?? 0) + Number(value));
  }
  return counts;
}

/** What was written between two counts, but for what may always be: `pods: 3`. */
export function writesBetween(before: Map<string, number>, after: Map<string, number>): string[] {
  return [...after]
    .filter(([resource, count]) => !ALLOWED.has(resource) && count !== (before.get(resource) ?? 0))
    .map(([resource, count]) => `${resource}: ${count - (before.get(resource) ?? 0)}`);
}

/** Resolves with the count once all that was begun has been written; then there is nothing left to say. */
export async function untilSettled(cluster: Cluster): Promise<Map<string, number>> {
  let before = await writesByResource(cluster);
  let quietLooks = 0;
  await waitFor(
    'the last Events and statuses to be written',
    async () => {
      const now = await writesByResource(cluster);
      quietLooks = writesBetween(before, now).length === 0 ? quietLooks + 1 : 0;
      before = now;
      return quietLooks >= QUIET_LOOKS;
    },
    { deadlineMilliseconds: SETTLE_MILLISECONDS, intervalMilliseconds: LOOK_MILLISECONDS },
  );
  return before;
}
