import { describe, expect, it } from 'vitest';
import type { Node } from '../../kube/core.ts';
import { addressesOf, refusalOfAddresses, type Surroundings } from './addresses.ts';

/** Addresses of Nodes, by the Node's name. */
const NODES: Record<string, string[]> = {
  'mac-1': ['10.0.0.7', '2001:DB8::7', 'fd00::7', '10.96.0.9', '127.0.0.1', '0.0.0.0', 'mac-1.example'],
  'mac-2': ['10.0.0.20'],
  rack1: ['10.0.0.8'],
  'rack1-berth': ['10.0.0.8'],
  'rack2.example': ['10.0.0.9'],
  'rack2-example-berth': ['10.0.0.9', '10.0.0.20', '10.0.0.1', '169.254.0.5', '224.0.0.5', 'fe80::1'],
};
const surroundings: Surroundings = {
  nodesAt: (address) => Object.keys(NODES).filter((name) => addressesOf(nodeOf(name)).includes(address)),
  apiServer: ['10.0.0.1'],
  serviceCIDRs: ['10.96.0.0/16'],
  settings: { addressCIDRs: ['10.0.0.0/8', 'fd00::/8', '0.0.0.0/0', '::/0'], nodeNameSuffix: '-berth' },
};

function nodeOf(name: string): Node {
  const addresses = (NODES[name] ?? []).map((address) => ({ type: 'InternalIP', address }));
  return { apiVersion: 'v1', kind: 'Node', metadata: { name }, status: { addresses } };
}

function judge(name: string, address: string, settings: Partial<Surroundings['settings']> = {}) {
  const { settings: usual } = surroundings;
  return refusalOfAddresses([address], nodeOf(name), {
    ...surroundings,
    settings: { ...usual, ...settings },
  });
}

describe('a serving certificate may be', () => {
  it.each([
    ["for the host's own address", 'mac-1', '10.0.0.7'],
    ['whatever the form of an IPv6 address', 'mac-1', '2001:db8::7'],
    ["for the address of the kubelet's Node beside it", 'rack1-berth', '10.0.0.8'],
    ['also where that has dots in its name', 'rack2-example-berth', '10.0.0.9'],
  ])('%s', (_what, name, address) => {
    expect(judge(name, address)).toBeUndefined();
  });

  it('for a loopback address if a CIDR has it', () => {
    expect(judge('mac-1', '127.0.0.1', { addressCIDRs: ['127.0.0.0/8'] })).toBeUndefined();
    expect(judge('mac-1', '127.0.0.1', { addressCIDRs: ['127.0.0.1/32'] })).toBeUndefined();
  });
});

describe('a serving certificate may not be', () => {
  it.each([
    ['for an address that the host does not publish', 'mac-1', '10.0.0.66', 'ForeignAddress'],
    ['for a ClusterIP', 'mac-1', '10.96.0.9', 'AddressOfService'],
    ["for the API server's address", 'rack2-example-berth', '10.0.0.1', 'AddressOfService'],
    ['for loopback', 'mac-1', '127.0.0.1', 'AddressNotAllowed'],
    ['for the unspecified address', 'mac-1', '0.0.0.0', 'AddressNotAllowed'],
    ['for a link-local address', 'rack2-example-berth', '169.254.0.5', 'AddressNotAllowed'],
    ['for a link-local IPv6 address', 'rack2-example-berth', 'fe80::1', 'AddressNotAllowed'],
    ['for a multicast address', 'rack2-example-berth', '224.0.0.5', 'AddressNotAllowed'],
    ["for another Node's address", 'rack2-example-berth', '10.0.0.20', 'AddressTaken'],
  ])('%s', (_what, name, address, reason) => {
    expect(judge(name, address)?.reason).toBe(reason);
  });

  it('for an address outside of the configured CIDRs, with the CIDRs in the refusal', () => {
    const refusal = judge('mac-1', '10.0.0.7', { addressCIDRs: ['10.0.1.0/24'] });
    expect(refusal?.message).toContain('hosts.addressCIDRs of the operator allows 10.0.1.0/24');
  });

  it("for the address of a kubelet's Node without a suffix", () => {
    expect(judge('rack1-berth', '10.0.0.8', { nodeNameSuffix: '' })?.reason).toBe('AddressTaken');
  });
});

it('counts only a few addresses of a Node, because a hostile host could claim those of the whole fleet', () => {
  const addresses = Array.from({ length: 10_000 }, (_, index) => ({
    type: 'InternalIP',
    address: `10.1.${index >> 8}.${index & 255}`,
  }));
  const node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'hostile' }, status: { addresses } };
  expect(addressesOf(node)).toHaveLength(64);
});
