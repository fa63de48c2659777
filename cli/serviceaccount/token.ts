/** Makes tokens of service accounts. */
import { lifeSeconds, tokenRequestSchema } from '../../api/http/serviceaccount.ts';
import { requestToken } from '../../kube/accounttoken.ts';
import { withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { accountIn } from './accounts.ts';

export interface TokenFlags {
  readonly duration?: string;
  readonly noExpiration?: boolean;
}

/**
 * Makes a token and writes it. In the formats `table` and `wide`, the output contains only the token, so that scripts can read it.
 *
 * @throws CommandError; ApiError.
 */
export async function token(
  terminal: Terminal,
  globals: Globals,
  { name, flags }: { name: string; flags: TokenFlags },
): Promise<void> {
  const seconds = secondsOf(flags);
  await withCluster(terminal, globals, async ({ client, namespace }) => {
    const made = await requestToken(client, accountIn(namespace, name), seconds);
    if (globals.output === 'table' || globals.output === 'wide') {
      terminal.out(`${made.token}\n`);
    } else {
      await print(terminal, globals.output, { rows: [{ name, ...made }], columns: [], itemOf: (row) => row });
    }
  });
}

/** Returns the lifetime of the token in seconds. @throws CommandError when the flags are wrong. */
function secondsOf({ duration, noExpiration = false }: TokenFlags): number {
  if (duration !== undefined && noExpiration) {
    throw new CommandError('Use only one of --duration and --no-expiration', EXIT.usage);
  }
  const life = tokenRequestSchema.safeParse({ duration, noExpiration });
  if (!life.success) {
    const messages = life.error.issues.map(({ message }) => message);
    throw new CommandError(`--duration ${JSON.stringify(duration)} ${messages.join(', ')}`, EXIT.usage);
  }
  return lifeSeconds(life.data);
}
