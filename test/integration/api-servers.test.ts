/** Rules of the kind Server: the API server refuses wrong values, and its message names the field. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import { messageOf } from '../../base/errors.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { sharedCluster } from '../support/cluster.ts';

const NAME = `rules-${process.pid}`;
const URLS = { onURL: 'https://plug/on', offURL: 'http://plug/off', statusURL: 'https://plug/' };
const webhook = { ...URLS, pattern: '(on|off)' };
const GOOD = { addresses: ['192.0.2.1', '2001:db8::1'], controller: { webhook } };

let cluster: Cluster;

beforeAll(async () => {
  cluster = await sharedCluster();
});

afterAll(async () => {
  await cluster?.client().delete(SERVERS, { name: NAME });
  await cluster?.disconnect();
});

/** Returns the message with which the API server refuses the Server, or an empty text. */
async function refusal(spec: object, name = NAME): Promise<string> {
  const server = { metadata: { name }, spec } as Unsaved<Server>;
  return await cluster
    .client()
    .create(SERVERS, server, { dryRun: true, fieldValidation: 'Strict' })
    .then(() => '', messageOf);
}

it.each([
  [{}, ''],
  [{ addresses: [] }, 'spec.addresses in body should have at least 1 items'],
  [{ addresses: ['rack1.example'] }, 'every address must be an IPv4 or IPv6 address'],
  [{ addresses: ['fe80::1%eth0'] }, 'every address must be an IPv4 or IPv6 address'],
  [{ addresses: ['2001:db8::1', '2001:0DB8::0001'] }, 'no address may be listed twice'],
  [{ displayName: 'two\nlines' }, 'spec.displayName in body should match'],
  [{ controller: {} }, 'exactly one of redfish, ipmi and webhook must be set'],
  [
    { controller: { webhook, ipmi: { address: '10.0.0.1' } } },
    'exactly one of redfish, ipmi and webhook must be set',
  ],
  [{ controller: { redfish: { endpoint: 'http://10.0.0.1' } } }, 'spec.controller.redfish.endpoint'],
  [
    { controller: { redfish: { endpoint: 'https://me:secret@10.0.0.1' } } },
    'spec.controller.redfish.endpoint',
  ],
  [{ controller: { ipmi: { address: '-H', cipherSuite: 3 } } }, 'spec.controller.ipmi.address'],
  [{ controller: { ipmi: { address: '10.0.0.1', cipherSuite: 0 } } }, 'must be 17 or 3'],
  [{ controller: { ipmi: { address: '10.0.0.1', port: 0 } } }, 'must be from 1 to 65535'],
  [{ controller: { webhook: { ...webhook, onURL: 'file:///etc/passwd' } } }, 'spec.controller.webhook.onURL'],
  [{ policy: { whenOccupied: 'Ask' } }, 'supported values: "Refuse", "Force", "Wait"'],
  [{ policy: { waitSeconds: -1 } }, 'must be from 0 to 604800'],
  [{ powerAction: { action: 'Off' } }, 'spec.powerAction.requestedAt: Required value'],
  [
    { powerAction: { action: 'Sleep', requestedAt: '2030-01-01T00:00:00Z' } },
    'supported values: "On", "Off", "Reboot"',
  ],
  [{ powerAction: { action: 'On', requestedAt: 'now' } }, 'spec.powerAction.requestedAt'],
])('%j: %s', async (change, message) => {
  const text = await refusal({ ...GOOD, ...change });
  expect(text === '').toBe(message === '');
  expect(text).toContain(message);
});

it('has no IP address as its name, because requests name a server by its name or its address', async () => {
  expect(await refusal(GOOD, '192.0.2.1')).toContain('metadata.name must not be an IP address');
});

it('keeps its Node while Berth switches the host', async () => {
  const client = cluster.client();
  await client.create(SERVERS, { metadata: { name: NAME }, spec: { ...GOOD, nodeName: 'one' } });
  const host = { cordonedAt: '2030-01-01T00:00:00Z' };
  await client.mergePatch(SERVERS, { name: NAME }, { status: { host } }, { subresource: 'status' });
  const move = client.mergePatch(SERVERS, { name: NAME }, { spec: { nodeName: 'two' } });
  await expect(move).rejects.toThrow('nodeName cannot change while a power action of the host is under way');
  const describe = client.mergePatch(SERVERS, { name: NAME }, { spec: { location: 'Dublin' } });
  await expect(describe).resolves.toMatchObject({ spec: { location: 'Dublin', nodeName: 'one' } });
});
