/** What was written to the API server, by its own count. */
import type { Cluster } from '../cluster/index.ts';

const WRITES = new Set(['POST', 'PUT', 'PATCH', 'APPLY', 'DELETE']);
/** Leases and heartbeats of hosts go on for ever. */
const ALLOWED = new Set(['leases', 'nodes']);

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
