import { expect, it } from 'vitest';
import { CACHE_NODES_LIMIT } from '../../api/v1alpha1/names.ts';
import { NODE_MESSAGE_LENGTH, type NodeCacheState } from '../../api/v1alpha1/imagecacheentry.ts';
import { parseConfig } from '../config/config.ts';
import type { ObservedEntry } from './observed.ts';
import { planEntry } from './plan.ts';

const NOW = Date.parse('2030-01-01T12:00:00Z');
/** Largest request to etcd, in bytes. The API server stores the object and its managed fields in one request. */
const ETCD_BYTES = 1.5 * 1024 * 1024;

/** Returns the status of an entry whose image could not be fetched on this number of hosts, each with a long message. */
function statusWithFailures(count: number) {
  const names = Array.from(
    { length: count },
    (_, number) => `host-${String(number).padStart(4, '0')}.rack.example`,
  );
  const message = `ImageAccessDenied: ${'x'.repeat(NODE_MESSAGE_LENGTH)}`.slice(0, NODE_MESSAGE_LENGTH);
  const retryAt = '2030-01-01T12:30:00Z';
  const nodes = names.map((node) => ({ node, state: 'Failed', message, failures: 12, retryAt }));
  const host = {
    tags: new Set<string>(),
    notReadySince: undefined,
    isCordoned: false,
    isUsable: true,
    dedicatedTo: undefined,
    images: [],
  };
  const observed: ObservedEntry = {
    entry: {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'ImageCacheEntry',
      metadata: { name: 'guest', uid: 'e' },
      spec: { reference: 'registry.example/guest:1', targets: { all: true } },
      status: { nodes, holders: names },
    },
    jobNamespace: 'platform-ci',
    reference: 'registry.example/guest:1',
    image: { reason: 'ImageNotReady', message: 'no content yet' },
    duplicateOf: undefined,
    hosts: new Map(names.map((name) => [name, { ...host, name }])),
    freeSlots: () => 1,
    jobs: [],
    credentials: [],
    lingering: new Set(),
    config: parseConfig({}, 'test'),
    now: NOW,
  };
  return planEntry(observed).status;
}

/** Returns the managed fields that the API server stores for the hosts of a status. */
function managedFields({ nodes = [], holders = [] }: ReturnType<typeof statusWithFailures>): string {
  const fieldsOf = (row: NodeCacheState) =>
    Object.fromEntries(['.', ...Object.keys(row).map((field) => `f:${field}`)].map((field) => [field, {}]));
  const rows = nodes.map((row) => [`k:${JSON.stringify({ node: row.node })}`, fieldsOf(row)]);
  const names = holders.map((name) => [`v:${JSON.stringify(name)}`, {}]);
  return JSON.stringify(Object.fromEntries([...rows, ...names]));
}

it('a status stays below the limit of etcd if all hosts failed with long messages', () => {
  const status = statusWithFailures(CACHE_NODES_LIMIT);
  expect(status.failed).toBe(CACHE_NODES_LIMIT);
  expect(JSON.stringify(status).length + managedFields(status).length).toBeLessThan(ETCD_BYTES);
  expect(status.nodes?.[0]?.message).toMatch(/^ImageAccessDenied: .*…x+$/);
});

it('the messages of a few hundred failures are not shortened further', () => {
  const lengths = statusWithFailures(500).nodes?.map(({ message }) => message?.length);
  expect(lengths).toEqual(Array.from({ length: 500 }, () => NODE_MESSAGE_LENGTH));
});
