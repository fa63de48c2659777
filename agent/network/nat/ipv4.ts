/** Calculates with IPv4 subnets as numbers. This file contains only the calculations that the NAT network needs. */
import { isIPv4 } from 'node:net';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';

export interface Subnet {
  /** First address of the network as an unsigned 32-bit number. */
  base: number;
  prefix: number;
}

export function toNumber(address: string): number {
  return address.split('.').reduce((value, byte) => value * 256 + Number(byte), 0);
}

export function toAddress(value: number): string {
  return [24, 16, 8, 0].map((shift) => (value >>> shift) & 255).join('.');
}

/** Parses a subnet such as `10.0.0.0/20`. @throws ReasonedError `NetworkUnavailable` when the text is not a subnet from /8 to /28. */
export function parseSubnet(text: string): Subnet {
  const [address = '', length = ''] = text.split('/');
  const prefix = Number(length);
  if (!isIPv4(address) || !/^\d{1,2}$/.test(length) || prefix < 8 || prefix > 28) {
    const message = `${JSON.stringify(text)} is not an IPv4 network from /8 to /28`;
    throw new ReasonedError('NetworkUnavailable', message);
  }
  const size = 2 ** (32 - prefix);
  return { base: Math.floor(toNumber(address) / size) * size, prefix };
}

export function formatSubnet(subnet: Subnet): string {
  return `${toAddress(subnet.base)}/${subnet.prefix}`;
}

export function sizeOf(subnet: Subnet): number {
  return 2 ** (32 - subnet.prefix);
}

/** Returns the n-th address of the subnet; 0 is the network's own address. */
export function addressAt(subnet: Subnet, n: number): string {
  return toAddress(subnet.base + n);
}

export function contains(subnet: Subnet, address: string): boolean {
  const value = toNumber(address);
  return value >= subnet.base && value < subnet.base + sizeOf(subnet);
}

/** Returns whether both addresses are in the same network with a prefix of this length. */
export function isInOneNetwork(a: string, b: string, prefix: number): boolean {
  const size = 2 ** (32 - prefix);
  return Math.floor(toNumber(a) / size) === Math.floor(toNumber(b) / size);
}

export function overlaps(a: Subnet, b: Subnet): boolean {
  return a.base < b.base + sizeOf(b) && b.base < a.base + sizeOf(a);
}
