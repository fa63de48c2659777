/** Adds and removes users of the power API that have a password. */
import { hashSync } from 'bcryptjs';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import {
  isServerUserName,
  isWholePassword,
  parseServerUsers,
  PASSWORD_BYTES,
  SERVER_USERS_KEY,
  SERVER_USERS_LIMIT,
  SERVER_USERS_SECRET,
  withServerUser,
} from '../../api/v1alpha1/serverusers.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Secret, SECRETS } from '../../kube/core.ts';
import { isAlreadyExists, isConflict, unlessMissing } from '../../kube/errors.ts';
import { withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { printDone } from '../output.ts';
import { readPassword } from '../password.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';

/** Cost of new hashes. The HTTP API needs some 70 ms for a check, and an attacker with the hash needs as long for each guess. */
const COST = 10;
/** Number of attempts to change the Secret. Each conflict means that somebody else changed it at the same time. */
const ATTEMPTS = 5;

/** Adds a user, or gives a user another password. @throws CommandError when the name or the password is not valid; ApiError. */
export async function addUser(
  terminal: Terminal,
  globals: Globals,
  name: string,
  { passwordStdin = false }: { passwordStdin?: boolean },
): Promise<void> {
  if (!isServerUserName(name)) {
    throw new CommandError(
      `The name ${JSON.stringify(printable(name))} must have 1 to 128 characters, without a colon, control characters, or # at the beginning`,
      EXIT.usage,
    );
  }
  const password = await readPassword(terminal, passwordStdin, { longest: PASSWORD_BYTES });
  if (!isWholePassword(password)) {
    throw new CommandError(`The password must have at most ${PASSWORD_BYTES} bytes`, EXIT.usage);
  }
  const hash = hashSync(password, COST);
  await changeUsers(terminal, globals, name, 'Successfully added server user', (text) => {
    const { hashes } = parseServerUsers(text);
    if (!hashes.has(name) && hashes.size >= SERVER_USERS_LIMIT) {
      throw new CommandError(`There are already ${SERVER_USERS_LIMIT} users. Remove a user first`);
    }
    return withServerUser(text, name, hash);
  });
}

/** Removes a user. @throws CommandError when there is no such user; ApiError. */
export async function removeUser(terminal: Terminal, globals: Globals, name: string): Promise<void> {
  await changeUsers(terminal, globals, name, 'Successfully removed server user', (text) => {
    const left = withServerUser(text, name);
    if (left === withServerUser(text, '')) {
      throw new CommandError(`server user ${printable(name)} not found`, EXIT.notFound);
    }
    return left;
  });
}

async function changeUsers(
  terminal: Terminal,
  globals: Globals,
  name: string,
  words: string,
  change: (text: string) => string,
): Promise<void> {
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    const ref = {
      namespace: globals.namespace === undefined ? SYSTEM_NAMESPACE : namespace,
      name: SERVER_USERS_SECRET,
    };
    for (let attempt = 0; !(await changed(client, ref, change)); attempt += 1) {
      if (attempt >= ATTEMPTS) {
        throw new CommandError(`Secret ${ref.name} changes too often. Try again later`, EXIT.noAnswer);
      }
    }
    await printDone(terminal, globals.output, [{ name }], words);
  });
}

/** Changes the lines of the Secret, or creates the Secret. Returns false if somebody else has changed it at the same time. */
async function changed(
  client: KubeClient,
  ref: { namespace: string; name: string },
  change: (text: string) => string,
): Promise<boolean> {
  const secret = await unlessMissing(client.get(SECRETS, ref));
  const text = Buffer.from(secret?.data?.[SERVER_USERS_KEY] ?? '', 'base64').toString('utf8');
  const data = { ...secret?.data, [SERVER_USERS_KEY]: Buffer.from(change(text)).toString('base64') };
  try {
    await (secret === undefined
      ? client.create(SECRETS, { metadata: ref, data })
      : client.update<Secret>(SECRETS, { ...secret, data }));
    return true;
  } catch (error) {
    if (isConflict(error) || isAlreadyExists(error)) {
      return false;
    }
    throw error;
  }
}
