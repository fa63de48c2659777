/**
 * Keeps what a host loses with its Node. Scripts and cloud controllers delete the Node of a host whose agent is away for a minute, although
 * its machines run. The agent then creates the Node again, but it may not set an administrator's labels, taints and cordon. So the operator
 * keeps them, and writes them to the new Node before anything is scheduled to it.
 *
 * The records are in a ConfigMap in the operator's own namespace. The key of a record is the name of the Node. A key that begins with
 * {@link GIVE_UP_PREFIX} is the request of an administrator: the host of this name is gone for good.
 */
import { isDeepStrictEqual } from 'node:util';
import * as z from 'zod';
import {
  AWAITED_ANNOTATION,
  DEDICATED_KEY,
  GIVE_UP_PREFIX,
  HOST_MARK,
  HOST_RECORDS,
  HOST_VALUE,
  TAG_LABEL_PREFIX,
} from '../../api/v1alpha1/names.ts';
import { type AwaitedVMs, awaitedOn, awaitedText, parseDocument } from '../../api/v1alpha1/machine.ts';
import type { KubeClient } from '../../kube/client.ts';
import { patchOrCreate } from '../../kube/configmapdata.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { ConfigMap, Node, Taint } from '../../kube/core.ts';
import type { Informer, InformerOptions } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { FIELD_MANAGER } from '../objects/writer.ts';
import { isOurTaint } from './plan.ts';

/**
 * Largest record in characters of JSON. The labels for tags can come from the host itself. Without a limit, one hostile host could fill the
 * ConfigMap, which can have at most 1 MiB. 250 hosts with records of this size fit.
 */
const RECORD_LENGTH = 4_096;
/** Taints with this prefix belong to Kubernetes, which sets them again when their cause lasts. */
const KUBERNETES_TAINTS = /^node(\.cloudprovider)?\.kubernetes\.io\//;

const taintSchema = z.object({
  key: z.string(),
  value: z.string().default(''),
  effect: z.enum(['NoSchedule', 'PreferNoSchedule', 'NoExecute']),
});

const recordSchema = z.object({
  /** Uid of the Node from which the rest was read. It is empty if the operator never saw the Node. */
  nodeUid: z.string(),
  /** The mark of a host, its dedication and its tags. */
  labels: z.record(z.string(), z.string()).default({}),
  /** Taints of administrators and other programs. */
  taints: z.array(taintSchema).default([]),
  /** Whether the Node was cordoned. */
  unschedulable: z.boolean().optional(),
  /** Value of the annotation {@link AWAITED_ANNOTATION}. */
  awaited: z.string().optional(),
  /** Time when the operator noticed that the Node was missing, in RFC 3339. */
  missingSince: z.iso.datetime().optional(),
  /** Time when an administrator gave the host up, in RFC 3339. */
  givenUpAt: z.iso.datetime().optional(),
});

export type HostRecord = z.infer<typeof recordSchema>;

/** Record of a host whose Node the operator never saw. */
export const NO_RECORD: HostRecord = { nodeUid: '', labels: {}, taints: [] };

/** Returns options for an informer that watches only the ConfigMap with the records. */
export function recordsSelector(namespace: string): InformerOptions<ConfigMap> {
  return { namespace, fieldSelector: `metadata.name=${HOST_RECORDS}` };
}

/** Returns the part of a Node that its agent cannot set again, or sets only partly. */
export function recordOf(node: Readonly<Node>): HostRecord {
  const { metadata, spec = {} } = node;
  const isKept = (key: string) =>
    key === HOST_MARK || key === DEDICATED_KEY || key.startsWith(TAG_LABEL_PREFIX);
  const labels = Object.entries(metadata.labels ?? {}).filter(([key]) => isKept(key));
  const foreign = (spec.taints ?? []).filter(
    (taint) => !isOurTaint(taint) && !KUBERNETES_TAINTS.test(taint.key),
  );
  const awaited = metadata.annotations?.[AWAITED_ANNOTATION];
  const record = {
    nodeUid: metadata.uid ?? '',
    labels: Object.fromEntries(labels),
    taints: foreign.map(({ key, value = '', effect }) => ({ key, value, effect })),
    ...(spec.unschedulable === true && { unschedulable: true }),
    ...(awaited !== undefined && { awaited }),
  };
  return bounded(record);
}

/**
 * Returns true if the record must be stored while the Node exists. The mark alone is stored when the Node is deleted, so that a large fleet
 * causes no writes.
 */
export function isWorthKeeping({ labels, taints, unschedulable, awaited, givenUpAt }: HostRecord): boolean {
  const isMarkedOnly = Object.keys(labels).every((key) => key === HOST_MARK);
  return (
    !isMarkedOnly || taints.length > 0 || [unschedulable, awaited, givenUpAt].some((one) => one !== undefined)
  );
}

/**
 * Returns the largest part of the record that is not too long. A hostile host can write tags, the list of awaited VMs, and the taints of a new
 * Node. Mark, dedication and cordon are short, so they always stay.
 */
function bounded(record: HostRecord): HostRecord {
  const { nodeUid, labels, taints, unschedulable } = record;
  const kept = Object.entries(labels).filter(([key]) => !key.startsWith(TAG_LABEL_PREFIX));
  const withoutTags = { ...record, labels: Object.fromEntries(kept) };
  const cordon = unschedulable === true ? { unschedulable } : {};
  const smallest = { nodeUid, labels: withoutTags.labels, taints: [], ...cordon };
  const parts = [record, withoutTags, { ...smallest, taints }];
  return parts.find((part) => JSON.stringify(part).length <= RECORD_LENGTH) ?? smallest;
}

/** Returns the names of the hosts whose records or requests differ between two states of the ConfigMap. */
export function changedHosts({
  object,
  previous,
}: {
  object: ConfigMap;
  previous?: ConfigMap | undefined;
}): string[] {
  const [before, after] = [previous?.data ?? {}, object.data ?? {}];
  const keys = new Set([...Object.keys(before), ...Object.keys(after)]);
  const changed = [...keys].filter((key) => before[key] !== after[key]);
  return changed.map((key) => (key.startsWith(GIVE_UP_PREFIX) ? key.slice(GIVE_UP_PREFIX.length) : key));
}

export interface HostRecordsOptions {
  readonly client: KubeClient;
  readonly recordsMap: Informer<ConfigMap>;
  readonly config: Pick<OperatorConfig, 'namespaces'>;
}

export class HostRecords {
  readonly #options: HostRecordsOptions;
  readonly #consistency = new Consistency();

  constructor(options: HostRecordsOptions) {
    this.#options = options;
  }

  /** Returns true when the cache shows the last change of this host's record. */
  ready(name: string): boolean {
    return this.#consistency.ready(name);
  }

  /** Returns the record of a host. The result is undefined if there is none, or if somebody made it unreadable. */
  of(name: string): HostRecord | undefined {
    return recordSchema.safeParse(parseDocument(this.#data()[name])).data;
  }

  /** Returns the names of the hosts that administrators asked to give up. */
  requested(): string[] {
    const keys = Object.keys(this.#data()).filter((key) => key.startsWith(GIVE_UP_PREFIX));
    return keys.map((key) => key.slice(GIVE_UP_PREFIX.length));
  }

  /** Returns the time since which the Node is missing, in milliseconds since the epoch. It is undefined while that time is not stored. */
  missingSince(name: string): number | undefined {
    const { missingSince } = this.of(name) ?? {};
    return missingSince === undefined ? undefined : Date.parse(missingSince);
  }

  isGivenUp(name: string): boolean {
    return this.of(name)?.givenUpAt !== undefined;
  }

  /** Stores the record if it differs from the stored one. The value undefined removes the record. @throws ApiError */
  async keep(name: string, record: HostRecord | undefined): Promise<void> {
    if (!isDeepStrictEqual(this.of(name), record)) {
      await this.#write(name, { [name]: record === undefined ? null : JSON.stringify(record) });
    }
  }

  /** Removes the request to give the host up, and stores the record if it is given. @throws ApiError */
  async answer(name: string, record?: HostRecord): Promise<void> {
    const answered = { [`${GIVE_UP_PREFIX}${name}`]: null };
    await this.#write(
      name,
      record === undefined ? answered : { ...answered, [name]: JSON.stringify(record) },
    );
  }

  async #write(name: string, data: Record<string, string | null>): Promise<void> {
    const { client, recordsMap } = this.#options;
    const present = Object.entries(data).filter((one): one is [string, string] => one[1] !== null);
    const options = { fieldManager: FIELD_MANAGER };
    const stored = await patchOrCreate(client, this.#ref(), { data }, Object.fromEntries(present), options);
    this.#consistency.wrote(name, recordsMap, stored.metadata.resourceVersion ?? '');
  }

  #data(): Readonly<Record<string, string>> {
    return this.#options.recordsMap.cache.get(keyOf({ metadata: this.#ref() }))?.data ?? {};
  }

  #ref(): { namespace: string; name: string } {
    return { namespace: this.#options.config.namespaces.system, name: HOST_RECORDS };
  }
}

/** Change of a Node, as a merge patch. */
interface NodeChange {
  readonly metadata: { readonly labels?: object; readonly annotations?: object };
  readonly spec?: { readonly taints?: readonly Taint[]; readonly unschedulable?: true };
}

/**
 * Returns the change that makes a Node a host, with what the earlier Node of the host had. The result is undefined if the Node already has
 * all of it. `earlier` is undefined if the Node is the same as before. `forced` are the VMs that need new Pods. Berth's own taints follow in a
 * later request, which comes before the slots.
 */
export function restoredNode(
  node: Node,
  earlier: HostRecord | undefined,
  forced: AwaitedVMs,
): NodeChange | undefined {
  const whole = wholeNode(node, earlier ?? NO_RECORD, forced);
  const { labels, annotations } = whole.metadata;
  const { taints = [], unschedulable } = whole.spec ?? {};
  const part = ({ metadata, spec = {} }: Node) => [
    metadata.labels ?? {},
    metadata.annotations ?? {},
    spec.taints ?? [],
    spec.unschedulable ?? false,
  ];
  return isDeepStrictEqual(part(node), part(whole))
    ? undefined
    : {
        metadata: { ...(labels && { labels }), ...(annotations && { annotations }) },
        spec: { taints, ...(unschedulable && { unschedulable }) },
      };
}

/** Returns the Node with all that it has and the earlier Node had. What both have with different values stays as in the Node. */
function wholeNode(node: Node, earlier: HostRecord, forced: AwaitedVMs): Node {
  const { metadata, spec = {} } = node;
  const present = spec.taints ?? [];
  const lost = earlier.taints.filter((taint) => !present.some((other) => sameKind(taint, other)));
  const awaited = { [AWAITED_ANNOTATION]: earlier.awaited ?? '{}' };
  const waiting = awaitedText({ ...awaitedOn({ metadata: { annotations: awaited } }), ...forced });
  return {
    ...node,
    metadata: {
      ...metadata,
      labels: { [HOST_MARK]: HOST_VALUE, ...earlier.labels, ...metadata.labels },
      annotations: { ...(waiting !== null && { [AWAITED_ANNOTATION]: waiting }), ...metadata.annotations },
    },
    spec: {
      ...spec,
      taints: [...present, ...lost],
      ...(earlier.unschedulable === true && { unschedulable: true }),
    },
  };
}

/** Returns true if the API server refuses to have both taints on one Node. */
function sameKind(a: Taint, b: Taint): boolean {
  return a.key === b.key && a.effect === b.effect;
}
