/** What the drivers of VMs have in common about guests: limits of commands, and the addresses that a guest reports. */
import { BlockList, isIP, SocketAddress } from 'node:net';
import { GUEST_ADDRESSES_LIMIT } from '../../api/v1alpha1/machine.ts';
import { type GuestCommand, StreamRefused } from './driver.ts';

/** Limit of a command's input. A guest agent may keep the whole input in the guest's memory. */
const INPUT_LIMIT_BYTES = 1024 * 1024;
/** Size of one piece of a command's output. A multiple of three, because base64 has groups of three bytes. */
export const PIECE_BYTES = 48 * 1024;
/** Limit of the output of one stream in bytes, nearly 4 MiB. Longer output is cut. */
export const OUTPUT_LIMIT_BYTES = 85 * PIECE_BYTES;

/** @throws StreamRefused when the input of the command is too long. */
export function requireShortInput({ input }: Pick<GuestCommand, 'input'>): void {
  if (input !== undefined && input.length > INPUT_LIMIT_BYTES) {
    throw new StreamRefused(`The standard input of the command is longer than ${INPUT_LIMIT_BYTES} bytes`);
  }
}

/** Networks that cannot be reached from outside the guest: unspecified, loopback, link-local, multicast and reserved addresses. */
const NOWHERE = [
  ['0.0.0.0', 8, 'ipv4'],
  ['127.0.0.0', 8, 'ipv4'],
  ['169.254.0.0', 16, 'ipv4'],
  ['224.0.0.0', 3, 'ipv4'],
  ['::', 127, 'ipv6'],
  ['fe80::', 10, 'ipv6'],
  ['ff00::', 8, 'ipv6'],
] as const;
const nowhere = new BlockList();
for (const [network, prefix, family] of NOWHERE) {
  nowhere.addSubnet(network, prefix, family);
}

/** Returns the texts that are addresses at which other hosts can reach the guest, each once and in its standard form. */
export function reachableAddresses(texts: readonly string[]): string[] {
  const known = new Set<string>();
  for (const text of texts) {
    const plain = plainAddress(text);
    if (plain !== undefined && known.size < GUEST_ADDRESSES_LIMIT) {
      known.add(plain);
    }
  }
  return [...known];
}

/** Returns the standard form of an address at which other hosts can reach the guest. Returns undefined for any other text. */
function plainAddress(text: string): string | undefined {
  // `isIP` also accepts IPv6 addresses with a zone after a percent sign, or with an IPv4 address in dotted form at the end. The pattern
  // excludes these addresses.
  const version = /^[0-9a-f:]+$|^[0-9.]+$/i.test(text) ? isIP(text) : 0;
  if (version === 0) {
    return undefined;
  }
  const family = version === 6 ? 'ipv6' : 'ipv4';
  const { address } = new SocketAddress({ address: text, family });
  return nowhere.check(address, family) ? undefined : address;
}
