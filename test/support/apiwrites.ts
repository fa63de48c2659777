/** Writes to the API server: their number from its metrics, and their senders from its audit log. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { AUDIT_LOG } from '../../hack/cluster/controlplane.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';

const WRITES = new Set(['POST', 'PUT', 'PATCH', 'APPLY', 'DELETE']);
/**
 * Time without a write after which all work in the cluster counts as done, in milliseconds. Events and combined statuses are written some
 * seconds after the change.
 */
const QUIET_MILLISECONDS = 6_000;
const STEADY_MILLISECONDS = 120_000;
const LOOK_MILLISECONDS = 500;
/** Key by which the API server distinguishes the credentials of one user. */
const CREDENTIAL_KEY = 'authentication.kubernetes.io/credential-id';

/** Returns the number of requests that changed an object, by resource, since the API server started. */
export async function writesByResource(cluster: Cluster): Promise<Map<string, number>> {
  const { body } = await cluster.client().raw('GET', '/metrics');
  const counts = new Map<string, number>();
  for (const line of String(body).split('\n')) {
    const match = /^apiserver_request_total\{(.*)\} (\S+)$/.exec(line);
    const [, labels = '', value = '0'] = match ?? [];
    const verb = /verb="([A-Z]+)"/.exec(labels)?.[1] ?? '';
    const resource = /resource="([^"]*)"/.exec(labels)?.[1] ?? '';
    if (WRITES.has(verb)) {
      counts.set(resource, (counts.get(resource) ?? 0) + Number(value));
    }
  }
  return counts;
}

/** A write in the format of the audit log. */
interface AuditEvent {
  readonly verb: string;
  readonly userAgent?: string;
  readonly user?: { extra?: Record<string, string[]> };
  /** The body of the request. */
  readonly requestObject?: object;
  readonly objectRef?: { resource: string; subresource?: string; namespace?: string; name?: string };
  /** Time of the response, in RFC 3339. */
  readonly stageTimestamp: string;
}

/**
 * One write. `writer` is the first word of the user agent, `what` is the action (`patch nodes/status`), and `object` is the
 * changed object.
 */
export interface AuditedWrite {
  readonly writer: string;
  /** SHA-256 of the client certificate of the request, in hexadecimal. The text is empty if the request had no certificate. */
  readonly certificate: string;
  readonly what: string;
  readonly object: string;
  /** The body of the request, as JSON. */
  readonly body: string;
  /** Time in milliseconds since the epoch. */
  readonly at: number;
}

/** Returns all writes to a cluster that was started with `audit`, the oldest first. */
export function auditedWrites({ directory }: Cluster): AuditedWrite[] {
  const lines = readFileSync(join(directory, AUDIT_LOG), 'utf8').split('\n').slice(0, -1);
  return lines.map((line) => {
    const event = JSON.parse(line) as AuditEvent;
    const { verb, userAgent = '', user, objectRef, requestObject, stageTimestamp } = event;
    const [credential = ''] = user?.extra?.[CREDENTIAL_KEY] ?? [];
    const { resource = '', subresource, namespace = '', name = '' } = objectRef ?? {};
    return {
      writer: userAgent.split(/[/ ]/)[0] ?? '',
      certificate: /^X509SHA256=(.*)$/.exec(credential)?.[1] ?? '',
      what: `${verb} ${subresource === undefined ? resource : `${resource}/${subresource}`}`,
      object: `${namespace}/${name}`,
      body: JSON.stringify(requestObject ?? {}),
      at: Date.parse(stageTimestamp),
    };
  });
}

/**
 * Reports whether a write is a renewal of a Lease or a heartbeat of a kubelet, which never end. KWOK acts as the kubelet of
 * simulated hosts. The heartbeat that Berth's agent writes every five minutes is not included, so that a test can count it.
 */
export function isSignOfLife({ writer, what }: AuditedWrite): boolean {
  const isKubelet = writer === 'kubelet' || writer === 'kwok' || writer === 'kwok-controller';
  return what.endsWith(' leases') || (isKubelet && what === 'patch nodes/status');
}

/** Resolves when only Leases and heartbeats were written for some seconds. All other work is then finished. */
export async function untilSettled(cluster: Cluster): Promise<void> {
  await waitFor(
    'the last Events and statuses to be written',
    () => {
      const quietSince = Date.now() - QUIET_MILLISECONDS;
      return auditedWrites(cluster).every((write) => write.at < quietSince || isSignOfLife(write));
    },
    { deadlineMilliseconds: STEADY_MILLISECONDS, intervalMilliseconds: LOOK_MILLISECONDS },
  );
}
