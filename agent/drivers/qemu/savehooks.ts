/**
 * Prepares a guest for the memory of an image: runs the save hooks of its owner, then removes from the guest what later guests must not have in
 * common. The guest is a clone of the saved machine without a network, so its owner's guest never runs a hook. The guest agent runs one script.
 */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { freeze, type GuestAgent, thaw } from './guestagent.ts';
import { executeInGuest } from './guestexec.ts';
import { printableEnd, readText, untilAnswered } from './renewal.ts';

/** Time limit of all hooks together. A hook stops services and removes files. Longer work belongs before the save. */
const HOOKS_MILLISECONDS = 600_000;
/** Longest name of a hook that a message repeats, in characters. */
const NAME_CHARACTERS = 100;
/** Largest output of the script that is read, in bytes. The guest sends the last 500 bytes of each hook. */
const OUTPUT_BYTES = 256 * 1024;

/**
 * Script for a POSIX shell. It ends at its first failure, and is one compound command for the reason in renewal.ts. If a hook fails, it prints
 * the exit code and the name of the hook, and at its end it prints `prepared`. Of each hook, the last output go to the standard error.
 *
 * The DHCP client: only a client that the renewal starts again is ended. Other clients ask anew when the card gets its carrier.
 *
 * The SSH host keys: the files stay, but empty, because the renewal makes new keys of the same types.
 */
const SCRIPT = `{
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
for hook in /etc/berth/save.d/*; do
  if [ -x "$hook" ]; then
    code=$( { { result=0; "$hook" 2>&1 3>&- || result=$?; echo "$result" >&3; } | tail -c 500 >&2; } 3>&1 )
    if [ "$code" != 0 ]; then printf 'hook\\n%s\\n%s\\n' "$code" "$hook"; exit 1; fi
  fi
done
if command -v ifup >/dev/null && [ -e /etc/network/interfaces ]; then
  for client in dhclient udhcpc; do
    for process in $(pidof "$client" || :); do kill "$process" || :; done
  done
fi
rm -f /var/lib/dhcp/*.leases* /var/lib/dhclient/*.lease* /var/lib/dhcpcd/*.lease* /var/lib/NetworkManager/*.lease /run/systemd/netif/leases/*
for key in /etc/ssh/ssh_host_*_key; do
  if [ -f "$key" ]; then : >"$key"; fi
done
rm -f /etc/ssh/ssh_host_*_key.pub /etc/dropbear/dropbear_*_host_key
rm -f /var/lib/systemd/random-seed /var/lib/urandom/random-seed /var/lib/seedrng/* /boot/loader/random-seed /efi/loader/random-seed /boot/efi/loader/random-seed
sync
echo 3 >/proc/sys/vm/drop_caches
echo prepared
exit
} </dev/null
`;

/**
 * Prepares the guest of a clone, and freezes its file systems at the end. `agent` is its guest agent, whose file systems are frozen, as they were
 * when the memory was saved.
 *
 * @throws ReasonedError `SaveHookFailed` when a hook fails or does not end in time; Error when the guest does not do its part.
 */
export async function prepareGuest(agent: GuestAgent, signal: AbortSignal): Promise<void> {
  const limit = AbortSignal.timeout(HOOKS_MILLISECONDS);
  const either = AbortSignal.any([signal, limit]);
  try {
    await untilAnswered(async () => await thaw(agent, either), either);
    await runHooks(agent, either);
    await freeze(agent, either);
  } catch (error) {
    signal.throwIfAborted();
    if (limit.aborted) {
      const message = `The hooks in /etc/berth/save.d did not end within ${HOOKS_MILLISECONDS / 1000} s`;
      throw new ReasonedError('SaveHookFailed', message, { cause: error });
    }
    throw error;
  }
}

async function runHooks(agent: GuestAgent, signal: AbortSignal): Promise<void> {
  let room = OUTPUT_BYTES;
  const { exitCode, stdout, stderr } = await executeInGuest(agent, {
    path: '/bin/sh',
    arguments: ['-s'],
    input: Buffer.from(SCRIPT),
    reserve: (bytes) => (room -= bytes) >= 0,
    signal,
  });
  const said = readText(stdout).trimEnd().split('\n');
  const output = printableEnd(stderr);
  if (said[0] === 'hook') {
    const [, code, name = ''] = said;
    const ended = `The save hook ${printableEnd(name).slice(0, NAME_CHARACTERS)} ended with code ${Number(code)}`;
    throw new ReasonedError('SaveHookFailed', output === '' ? ended : `${ended}: ${output}`);
  }
  if (exitCode !== 0 || said.join() !== 'prepared') {
    throw new Error(`The script that prepares the guest ended with code ${exitCode}: ${output}`);
  }
}
