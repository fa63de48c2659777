/** What was written to the API server, by its own count, and by whom, from its audit log. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { AUDIT_LOG } from '../../hack/cluster/controlplane.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';

const WRITES = new Set(['POST', 'PUT', 'PATCH', 'APPLY', 'DELETE']);
/** Events are told, and statuses folded, some seconds after what they tell of. */
const QUIET_MILLISECONDS = 6_000;
const SETTLE_MILLISECONDS = 120_000;
const LOOK_MILLISECONDS = 500;
/** By which the API server tells the credentials of one user apart. */
const CREDENTIAL_KEY = 'authentication.kubernetes.io/credential-id';

/** Requests that changed something, by resource, since the API server started. */
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

/** A write as the audit log has it. */
interface AuditEvent {
  readonly verb: string;
  readonly userAgent?: string;
  readonly user?: { extra?: Record<string, string[]> };
  /** What was sent. */
  readonly requestObject?: object;
  readonly objectRef?: { resource: string; subresource?: string; namespace?: string; name?: string };
  /** When its answer was given, RFC 3339. */
  readonly stageTimestamp: string;
}

/** One write: who (the first word of the user agent), what (`patch nodes/status`) and of which object. */
export interface AuditedWrite {
  readonly writer: string;
  /** SHA-256 of the client certificate that it came with, in hexadecimal; empty where it came with none. */
  readonly certificate: string;
  readonly what: string;
  readonly object: string;
  /** What was sent, as JSON. */
  readonly body: string;
  /** Milliseconds since the epoch. */
  readonly at: number;
}

/** All writes to a cluster that was started with `audit`, the oldest first. */
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
 * Leases go on for ever, whoever holds them, and so do heartbeats of kubelets. KWOK stands for the kubelets of simulated
 * hosts; Berth's own agent writes the heartbeat of its Node every five minutes, which the caller may count.
 */
export function isSignOfLife({ writer, what }: AuditedWrite): boolean {
  const isKubelet = writer === 'kubelet' || writer === 'kwok' || writer === 'kwok-controller';
  return what.endsWith(' leases') || (isKubelet && what === 'patch nodes/status');
}

/** Resolves once nothing but signs of life has been written for some seconds: all that was begun is done. */
export async function untilSettled(cluster: Cluster): Promise<void> {
  await waitFor(
    'the last Events and statuses to be written',
    () => {
      const quietSince = Date.now() - QUIET_MILLISECONDS;
      return auditedWrites(cluster).every((write) => write.at < quietSince || isSignOfLife(write));
    },
    { deadlineMilliseconds: SETTLE_MILLISECONDS, intervalMilliseconds: LOOK_MILLISECONDS },
  );
}
