/** What programs take for the identity of a computer, as a guest sees it, to compare guests that continue from the same memory. */
import { expect } from 'vitest';
import { waitFor } from '../../hack/wait.ts';

/** Largest error of the clock of a guest from memory. */
const CLOCK_SECONDS = 1;
/** Word in each file that {@link LARGER_SYSTEM} makes. */
const SAVED = 'saved';
/** Files of larger systems by which guests are recognised, or from which they take random numbers. No guest from memory has them. */
const DROPPED = [
  '/var/lib/dhcp/dhclient.eth0.leases',
  '/var/lib/dhclient/dhclient.leases',
  '/var/lib/dhcpcd/eth0.lease',
  '/var/lib/NetworkManager/internal-eth0.lease',
  '/var/lib/NetworkManager/secret_key',
  '/run/systemd/netif/leases/2',
  '/var/lib/systemd/random-seed',
  '/var/lib/urandom/random-seed',
  '/var/lib/seedrng/seed.credit',
  '/boot/loader/random-seed',
];

/** Gives a small guest files of larger systems, and a program in place of ssh-keygen, which writes a key of its own each time. */
export const LARGER_SYSTEM = String.raw`
mkdir /etc/ssh
printf '127.0.0.1 localhost
127.0.1.1 berth-guest.example berth-guest
10.0.0.1 berth-guest-of-others
' >/etc/hosts
for type in ed25519 rsa; do echo ${SAVED} >"/etc/ssh/ssh_host_${'$'}{type}_key"; done
printf '#!/bin/sh
cat /proc/sys/kernel/random/uuid >"$7"
' >/bin/ssh-keygen
chmod 755 /bin/ssh-keygen
echo ${SAVED} >/etc/machine-id
for file in ${DROPPED.join(' ')}; do mkdir -p "${'$'}{file%/*}"; echo ${SAVED} >"$file"; done
`;

/** Commands that print, in one line each, what programs take for the identity of a computer. */
const IDENTITY = {
  machineId: 'cat /etc/machine-id',
  hostName: 'cat /proc/sys/kernel/hostname',
  hostKey: 'sha256sum </etc/ssh/ssh_host_ed25519_key',
  random: 'head -c 1048576 /dev/urandom | sha256sum',
  uuid: 'cat /proc/sys/kernel/random/uuid',
  mac: 'cat /sys/class/net/[!l]*/address',
  address: "ip -4 -o address show scope global | awk '{print $4}'",
  bootId: 'cat /proc/sys/kernel/random/boot_id',
  hardwareUUID: 'cat /sys/class/dmi/id/product_uuid',
  serialNumber: 'cat /sys/class/dmi/id/product_serial',
  left: `grep -ls '^${SAVED}$' ${DROPPED.join(' ')} | tr '\n' ' '`,
} as const;

type IdentityPart = keyof typeof IDENTITY;
export type Identity = Record<IdentityPart, string>;

/** Parts in which guests of one image always differ. */
export const OWN_PARTS = ['machineId', 'hostName', 'hostKey', 'random', 'uuid'] as const;
/** Parts that are in the saved memory for good. A guest has its own only after its next boot. */
export const SHARED_PARTS = ['bootId', 'hardwareUUID', 'serialNumber'] as const;

/** Script that a shell in a guest runs for {@link readIdentity}. */
export const IDENTITY_SCRIPT = Object.entries(IDENTITY)
  .map(([part, command]) => `printf '%s=%s\\n' ${part} "$(${command})"`)
  .join('\n');

/** Reads what {@link IDENTITY_SCRIPT} has printed. */
export function readIdentity(text: string): Identity {
  const lines = text.trim().split('\n');
  return Object.fromEntries(
    lines.map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1).trim()]),
  ) as Identity;
}

/** Checks that no two of these guests have the same value of one of these parts, and that each has a value. */
export function expectDifferent(guests: readonly Identity[], parts: readonly IdentityPart[]): void {
  for (const part of parts) {
    const values = guests.map((guest) => guest[part]);
    expect(new Set(['', ...values]).size, `different values of ${part}: ${values.join(', ')}`).toBe(
      guests.length + 1,
    );
  }
}

/** Checks that all of these guests have the same value of each of these parts. */
export function expectEqual(guests: readonly Identity[], parts: readonly IdentityPart[]): void {
  for (const part of parts) {
    const values = new Set(guests.map((guest) => guest[part]));
    expect([...values], `one value of ${part}`).toEqual([expect.stringMatching(/./)]);
  }
}

/** Waits until the clock of a guest is right. `run` runs a script in the guest. */
export async function expectRightClock(run: (script: string) => Promise<string>): Promise<void> {
  await waitFor('a clock that is right', async () => {
    const before = Date.now() / 1000;
    const guest = Number(await run('date +%s'));
    return Math.max(before - 1 - guest, guest - Date.now() / 1000) <= CLOCK_SECONDS;
  });
}
