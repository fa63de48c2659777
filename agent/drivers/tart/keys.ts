/**
 * SSH keys of guests with macOS. These guests read no seed disk, so their guest agent adds the keys while they run. A guest with Linux reads them
 * from its seed.
 */
import { messageOf } from '../../../base/errors.ts';
import type { GuestCommand, GuestCommandResult, KeysState } from '../driver.ts';
import { PIECE_BYTES } from '../guest.ts';
import type { TartState } from './files.ts';

/** Time limit of the script in the guest. It changes one small file. */
const GIVE_MILLISECONDS = 10_000;
/** Limit of the output of the script that is kept, in bytes. It prints a name. */
const OUTPUT_BYTES = 2 * PIECE_BYTES;
/** Tries in one run of the guest, and the time before the second one in milliseconds. It doubles with each try. */
const TRIES = 8;
const PAUSE_MILLISECONDS = 10_000;
/** Characters of a user name that a message repeats. A guest can report any name. */
const USER = /^[A-Za-z_][\w.-]{0,63}$/;

/**
 * Script for a POSIX shell, which reads the keys after it, one in each line. It adds the keys that the user does not have yet, and prints the name
 * of the user: that of the guest agent, or the first user of the system if the guest agent runs as root.
 */
const SCRIPT = `set -eu
user=$(id -un) home=$HOME
if [ "$(id -u)" -eq 0 ]; then
  user=$(dscl . -list /Users UniqueID | awk '$2 == 501 { print $1 }')
  home=$(dscl . -read "/Users/$user" NFSHomeDirectory | awk '{ print $2 }')
fi
file=$home/.ssh/authorized_keys
mkdir -p "$home/.ssh"
touch "$file"
[ -z "$(tail -c 1 "$file")" ] || echo >>"$file"
while IFS= read -r key; do
  grep -qxF -e "$key" "$file" || printf '%s\\n' "$key" >>"$file"
done
chmod 700 "$home/.ssh"
chmod 600 "$file"
if [ "$(id -u)" -eq 0 ]; then chown "$user" "$home/.ssh" "$file"; fi
echo "$user"
`;

/** What came of the keys of a machine since its last boot: the user who has them, or why nobody has. */
type Given = Pick<NonNullable<TartState['keys']>, 'user' | 'fault'>;

/**
 * Gives the keys to a guest by `execute`, which runs a command in it.
 *
 * @throws the signal's reason when the signal aborts.
 */
export async function giveKeys(
  keys: readonly string[],
  execute: (command: GuestCommand) => Promise<GuestCommandResult>,
  signal: AbortSignal,
): Promise<Given> {
  let room = OUTPUT_BYTES;
  try {
    const { exitCode, stdout } = await execute({
      path: 'sh',
      arguments: ['-c', SCRIPT],
      input: Buffer.from(keys.map((key) => `${key}\n`).join('')),
      reserve: (bytes) => (room -= bytes) >= 0,
      signal: AbortSignal.any([signal, AbortSignal.timeout(GIVE_MILLISECONDS)]),
    });
    const user = Buffer.concat(stdout).toString('utf8').trim();
    return exitCode === 0
      ? { user: USER.test(user) ? user : 'of the guest agent' }
      : { fault: `The script that adds them ended with code ${exitCode}` };
  } catch (error) {
    signal.throwIfAborted();
    return { fault: messageOf(error) };
  }
}

/** Returns how far the guest has the SSH keys of its VM. Undefined if the VM has none, or its guest reads them itself. */
export function keysState({ keys }: Pick<TartState, 'keys'>): KeysState | undefined {
  if (keys === undefined) {
    return undefined;
  }
  if (keys.user !== undefined) {
    return {
      ready: true,
      reason: 'KeysGiven',
      message: `The user ${keys.user} accepts the SSH keys of the VM. Root does not`,
    };
  }
  const cause = keys.fault ?? 'No guest agent has answered since the guest started';
  const advice =
    'Install tart-guest-agent in the image and start it, or log in as the image allows. A restart of the VM tries again';
  return {
    ready: false,
    reason: 'KeysNotGiven',
    message: `The guest has not got the SSH keys of the VM. ${cause}. ${advice}`,
  };
}

/** Decides when the next try to give keys is due, in one run of a guest. */
export class KeyTries {
  readonly #now: () => number;
  #tries = 0;
  #next = 0;

  /** `now` is a clock in milliseconds that is never set back. */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /** Returns whether a try is due, and counts it. */
  begin(): boolean {
    if (this.#tries >= TRIES || this.#now() < this.#next) {
      return false;
    }
    this.#next = this.#now() + PAUSE_MILLISECONDS * 2 ** this.#tries;
    this.#tries += 1;
    return true;
  }
}
