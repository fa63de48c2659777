/**
 * Gives a guest an identity of its own after a start from the memory of an image. Without this, all guests of the image would be the same
 * computer: equal random numbers, machine ID, host name, SSH host keys and MAC address. The guest agent runs one script in the guest. The
 * values come on the script's standard input, because all users of a guest can see the arguments of a process.
 *
 * A guest that continues from a snapshot of itself keeps its names and keys. It needs the rest of the renewal, because it has seen this moment
 * before: its random numbers would repeat, its clock is late, and its lease can be over.
 */
import { randomBytes } from 'node:crypto';
import { pause } from '../../../base/time.ts';
import type { GuestCommandResult, VmLaunchPlan } from '../driver.ts';
import { type GuestAgent, thawIfFrozen } from './guestagent.ts';
import { executeInGuest } from './guestexec.ts';

/** Time within which a guest must be renewed. Renewal takes less than a second, or a few seconds in an emulated guest. */
const RENEWAL_MILLISECONDS = 10_000;
/** Time within which an emulated guest must be renewed. Its host can be busy with other emulated guests. */
const EMULATED_RENEWAL_MILLISECONDS = 60_000;
/** Time between two attempts to reach the guest agent, which answers about 0.1 s after the guest continues. */
const ATTEMPT_INTERVAL_MILLISECONDS = 20;
const SEED_BYTES = 64;
const MACHINE_ID_BYTES = 16;
/** Longest output that an error message repeats, in characters. */
const OUTPUT_CHARACTERS = 500;
/** Characters that no message of the host repeats: line ends, and all that could change how a terminal shows the message. */
const CONTROL_CHARACTERS = /\p{C}+/gu;
/** Largest output of the script that is read, in bytes. An honest guest prints three lines, and its hooks perhaps some more. */
const OUTPUT_BYTES = 256 * 1024;

/**
 * Script for a POSIX shell. It ends at its first failure. It is one compound command, so that the shell reads all of it before its programs
 * could take the rest from standard input. At its end, it prints what the guest has now.
 *
 * The random numbers: a kernel with a driver for the generation ID has made its own anew already. Any other kernel gets new bytes and must be
 * told to use them (the ioctl RNDRESEEDCRNG, 0x5207), because it would use old ones for up to a minute.
 *
 * The journal: its files are in a folder with the name of the machine ID, where readers search them. Until its restart, journald writes to
 * the folder of the saved guest.
 */
const SCRIPT = `{
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
date -s "@$TIME" >/dev/null 2>&1 || date -s "@\${TIME%.*}" >/dev/null
printf "$SEED" >/dev/urandom
if ls /sys/bus/*/drivers/vmgenid/QEMUVGID* >/dev/null 2>&1; then :
elif command -v perl >/dev/null; then perl -e 'ioctl(STDIN, 0x5207, 0) or exit 1' </dev/urandom
elif command -v python3 >/dev/null; then python3 -c 'import fcntl; fcntl.ioctl(0, 0x5207)' </dev/urandom
elif [ -x /etc/berth/reseed ]; then /etc/berth/reseed </dev/urandom
else echo 'The kernel has no driver vmgenid, and the guest has neither perl, python3 nor /etc/berth/reseed to make its random numbers anew' >&2; exit 1
fi
if [ -n "$HOST_NAME" ]; then
if [ -e /etc/machine-id ]; then
  printf '%s\\n' "$MACHINE_ID" >/etc/machine-id
  if [ -f /var/lib/dbus/machine-id ] && [ ! -L /var/lib/dbus/machine-id ]; then
    printf '%s\\n' "$MACHINE_ID" >/var/lib/dbus/machine-id
  fi
fi
old=$(cat /proc/sys/kernel/hostname)
printf '%s' "$HOST_NAME" >/proc/sys/kernel/hostname
if [ -s /etc/hosts ] && [ "$old" != localhost ]; then
  hosts=$(OLD=$old NEW=$HOST_NAME awk '$1 ~ /^(127[.]|::1$)/ {
    for (i = 2; i <= NF; i++) if (index($i ".", ENVIRON["OLD"] ".") == 1) $i = ENVIRON["NEW"] substr($i, length(ENVIRON["OLD"]) + 1)
  } 1' /etc/hosts)
  printf '%s\\n' "$hosts" >/etc/hosts
fi
if [ -e /etc/hostname ]; then printf '%s\\n' "$HOST_NAME" >/etc/hostname; fi
fi
make_key() {
  \${2-} ssh-keygen -q -t "$1" -N '' -f "/etc/ssh/ssh_host_$1_key" || return
  if [ -s /run/sshd.pid ]; then kill -HUP "$(cat /run/sshd.pid)"; fi
}
if [ -n "$HOST_NAME" ] && command -v ssh-keygen >/dev/null && [ -d /etc/ssh ]; then
  types=
  for type in ed25519 ecdsa rsa; do
    if [ -e "/etc/ssh/ssh_host_\${type}_key" ]; then types="$types $type"; fi
  done
  rm -f /etc/ssh/ssh_host_*
  set -- \${types:-ed25519}
  make_key "$1"
  shift
fi
if [ -n "$KEYS" ]; then
  user=$(awk -F: '$3 == 1000 {print $1; exit}' /etc/passwd)
  home=$(awk -F: '$3 == 1000 {print $6; exit}' /etc/passwd)
  for folder in /root $home; do
    mkdir -p "$folder/.ssh"
    printf '%s\\n' "$KEYS" >"$folder/.ssh/authorized_keys"
    chmod 700 "$folder/.ssh"
    chmod 600 "$folder/.ssh/authorized_keys"
  done
  if [ -n "$home" ]; then chown -R "$user" "$home/.ssh"; fi
fi
card=
for path in /sys/class/net/*; do
  case "$(readlink "$path/device/driver" || :)" in */virtio_net) card=\${path##*/} ;; esac
done
if [ -n "$card" ]; then
  ip link set dev "$card" down
  ip address flush dev "$card"
  if [ -n "$MAC" ]; then ip link set dev "$card" address "$MAC"; fi
  ip link set dev "$card" up
fi
rm -f /var/lib/dhcp/*.lease* /var/lib/NetworkManager/*.lease /var/lib/NetworkManager/secret_key /run/systemd/netif/leases/*
if [ -d /run/systemd/system ]; then
  systemctl --no-block try-restart 'systemd-journald.servic[e]' 'systemd-networkd.servic[e]' 'NetworkManager.servic[e]'
fi
for hook in /etc/berth/renew.d/*; do
  if [ -x "$hook" ]; then "$hook" >&2; fi
done
if [ -n "$card" ] && command -v ifup >/dev/null && grep -qs "$card" /etc/network/interfaces /etc/network/interfaces.d/*; then
  (for _ in $(seq 300); do [ "$(cat "/sys/class/net/$card/carrier")" = 1 ] && break; sleep 0.1; done
  ifdown --force "$card"; ifup "$card") >/dev/null 2>&1 &
fi
(for type; do make_key "$type" "$(command -v nice)" || echo "berth: no SSH host key of the type $type could be made" >/dev/kmsg; done) >/dev/null 2>&1 &
if [ -n "$HOST_NAME" ]; then cat /proc/sys/kernel/hostname; else echo; fi
if [ -n "$HOST_NAME" ] && [ -e /etc/machine-id ]; then cat /etc/machine-id; else echo "$MACHINE_ID"; fi
if [ -n "$card" ] && [ -n "$MAC" ]; then cat "/sys/class/net/$card/address"; else echo "$MAC"; fi
exit
} </dev/null
`;

/** What a caller has to complete after a renewal. */
export interface Renewed {
  /** How many milliseconds the clock of the guest can be late, because a busy guest begins the script late. */
  lateMilliseconds: number;
  /** Whether the file systems of the guest were frozen, and were thawed. */
  wasThawed: boolean;
}

/** Identity that a guest gets. */
export interface GuestIdentity {
  /** Host name; undefined if the guest keeps its names and keys. */
  hostName: string | undefined;
  sshAuthorizedKeys: readonly string[];
  /** MAC address of the card; empty if the guest keeps the address of the saved card. */
  macAddress: string;
}

/** Returns the identity of the guest of a machine. */
export function identityOf({ guest, network }: Pick<VmLaunchPlan, 'guest' | 'network'>): GuestIdentity {
  const { vm, sshAuthorizedKeys } = guest.vm;
  // A user-mode network is inside the hypervisor, and continues with the address that it gave to the saved card. Its ports lead there.
  const macAddress = network.kind === 'tap' ? network.macAddress.toLowerCase() : '';
  return { hostName: vm.name, sshAuthorizedKeys, macAddress };
}

/** Returns what a guest gets that continues from a snapshot of itself. */
export function sameIdentity(plan: Pick<VmLaunchPlan, 'guest' | 'network'>): GuestIdentity {
  return { ...identityOf(plan), hostName: undefined, sshAuthorizedKeys: [] };
}

/** Ends with code 0 if the script of the renewal can make the random numbers of the guest anew. */
const RESEED_CHECK = `PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ls /sys/bus/*/drivers/vmgenid/QEMUVGID* >/dev/null 2>&1 || command -v perl || command -v python3 || [ -x /etc/berth/reseed ]
`;

/**
 * Checks that a guest can be renewed later. No clone proves it, because a clone of a snapshot would be the same computer a second time.
 *
 * @throws Error when the guest agent runs no script, or the guest has nothing to make its random numbers anew.
 */
export async function requireRenewable(
  agent: GuestAgent,
  { accelerator, signal }: { accelerator: string; signal: AbortSignal },
): Promise<void> {
  const { exitCode } = await executeInGuest(agent, {
    path: '/bin/sh',
    arguments: ['-s'],
    input: Buffer.from(RESEED_CHECK),
    reserve: outputLimit(),
    signal: AbortSignal.any([limitOf(accelerator), signal]),
  });
  if (exitCode !== 0) {
    throw new Error(
      'The kernel of the guest has no driver vmgenid, and the guest has neither perl, python3 nor /etc/berth/reseed',
    );
  }
}

function outputLimit(): (bytes: number) => boolean {
  let room = OUTPUT_BYTES;
  return (bytes) => (room -= bytes) >= 0;
}

/** Returns the time limit of a script of this file. */
function limitOf(accelerator: string): AbortSignal {
  return AbortSignal.timeout(accelerator === 'tcg' ? EMULATED_RENEWAL_MILLISECONDS : RENEWAL_MILLISECONDS);
}

/**
 * Renews the guest of a machine that was started from memory. `agent` is its guest agent, whose file systems are perhaps still frozen, as
 * they were when the memory was saved. Calls `onAnswer` when the guest agent has answered. @throws Error when the guest does not answer in time,
 * or does not have this identity then.
 */
export async function renewGuest(
  agent: GuestAgent,
  { hostName, sshAuthorizedKeys, macAddress }: GuestIdentity,
  options: { accelerator: string; signal: AbortSignal | undefined; onAnswer?: () => void },
): Promise<Renewed> {
  const limit = limitOf(options.accelerator);
  const signal = options.signal === undefined ? limit : AbortSignal.any([limit, options.signal]);
  const wasThawed = await untilAnswered(async () => await thawIfFrozen(agent, signal), signal);
  options.onAnswer?.();
  const machineId = hostName === undefined ? '' : randomBytes(MACHINE_ID_BYTES).toString('hex');
  const expected = [hostName ?? '', machineId, macAddress];
  const begin = performance.now();
  const values = {
    TIME: (Date.now() / 1000).toFixed(3),
    SEED: [...randomBytes(SEED_BYTES)].map((byte) => `\\${byte.toString(8).padStart(3, '0')}`).join(''),
    MACHINE_ID: machineId,
    HOST_NAME: hostName ?? '',
    MAC: macAddress,
    KEYS: sshAuthorizedKeys.join('\n'),
  };
  const result = await executeInGuest(agent, {
    path: '/bin/sh',
    arguments: ['-s'],
    input: Buffer.from(assignments(values) + SCRIPT),
    reserve: outputLimit(),
    signal,
  });
  const said = readText(result.stdout).split('\n').slice(0, expected.length);
  if (result.exitCode !== 0 || said.join() !== expected.join()) {
    const text = printableEnd([...result.stdout, ...result.stderr]);
    throw new Error(`The script that renews the guest ended with code ${result.exitCode}: ${text}`);
  }
  return { lateMilliseconds: performance.now() - begin, wasThawed };
}

/** Asks the guest agent, by `ask`, until it answers. @throws Error when the signal aborts before. */
export async function untilAnswered<T>(ask: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (signal.aborted) {
        throw error;
      }
    }
    await pause(ATTEMPT_INTERVAL_MILLISECONDS, signal);
  }
}

export function readText(pieces: GuestCommandResult['stdout']): string {
  return Buffer.concat(pieces).toString('utf8');
}

/** Returns the last words of a guest's program in a form that a message can repeat. */
export function printableEnd(output: GuestCommandResult['stdout'] | string): string {
  const text = typeof output === 'string' ? output : readText(output);
  return text.replaceAll(CONTROL_CHARACTERS, ' ').trim().slice(-OUTPUT_CHARACTERS);
}

/** Returns the lines of a script for a POSIX shell that give each variable its value. The values can be any text without a zero byte. */
export function assignments(values: Readonly<Record<string, string>>): string {
  return Object.entries(values)
    .map(([name, value]) => `${name}=${quoted(value)}\n`)
    .join('');
}

/** Quotes a value for a POSIX shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}
