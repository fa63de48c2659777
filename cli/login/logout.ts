/** Signs the user out on this computer and at the identity provider. */
import { undefinedIf } from '../../base/errors.ts';
import { CommandError, Interrupted } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { readSettings } from '../config/settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { changeKubeconfig } from './kubeconfig.ts';
import { placeOf } from './place.ts';
import { withProvider } from './provider.ts';
import { readSession, removeSession, type Session, sessionFile, withSessionLock } from './session.ts';

/** Removes the context and its session, even if the identity provider does not answer. @throws CommandError. */
export async function logout(terminal: Terminal, globals: Globals): Promise<void> {
  const { signal } = terminal;
  const place = placeOf(terminal, globals, await readSettings(terminal.environment));
  const wasThere = await changeKubeconfig(place.file, signal, (kubeconfig) =>
    kubeconfig.removeContext(place.context),
  );
  const file = sessionFile(terminal, place);
  const session = await withSessionLock(file, signal, async () => {
    const found = await undefinedIf((error) => error instanceof CommandError, readSession(file));
    await removeSession(file);
    return found;
  });
  const isRevoked = session === undefined || (await revoke(session, terminal));
  const { output } = globals;
  if (output === 'table' || output === 'wide') {
    const words = wasThere
      ? 'Signed out. Removed the context'
      : 'You were not signed in. There is no context';
    terminal.out(`${words} "${place.context}" of ${place.file}\n`);
  } else {
    const rows = wasThere ? [{ name: place.context, kubeconfig: place.file }] : [];
    await print(terminal, output, { rows, columns: [], itemOf: (row) => row });
  }
  if (!isRevoked) {
    terminal.err(
      `The command could not end the session at ${printable(session.issuer)}. Anyone who has a copy of the tokens can still use them\n`,
    );
  }
}

/** Asks the provider to make the refresh token invalid. Resolves with true if the provider did this, or if there is no refresh token. */
async function revoke(session: Session, terminal: Terminal): Promise<boolean> {
  const { refreshToken } = session;
  if (refreshToken === undefined) {
    return true;
  }
  const work = withProvider(session, terminal, async ({ oidc, configuration }) => {
    const { revocation_endpoint: address } = configuration.serverMetadata();
    await (address && oidc.tokenRevocation(configuration, refreshToken));
    return address !== undefined;
  });
  const isFailure = (error: unknown) => error instanceof CommandError && !(error instanceof Interrupted);
  return (await undefinedIf(isFailure, work)) ?? false;
}
