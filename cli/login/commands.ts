/** The commands with which users sign in and out. */
import { type Command, InvalidArgumentError } from 'commander';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import { API_URL_FORM, parseApiURL } from '../settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import type { LoginFlags } from './login.ts';
import type { TargetFlags } from './target.ts';

export function addLogin(command: Command, terminal: Terminal): void {
  addTargetFlags(command)
    .option('--issuer <url>', 'URL of the identity provider, if the HTTP API does not give one')
    .option(
      '--client-id <id>',
      'ID of the client at the identity provider, if the HTTP API does not give one',
    )
    .addOption(new BooleanFlag('--device', 'whether to show a code instead of opening a browser'))
    .action(async (flags: LoginFlags) => {
      const { login } = await import('./login.ts');
      await login(terminal, command.optsWithGlobals<Globals>(), flags);
    });
}

export function addLogout(command: Command, terminal: Terminal): void {
  command.action(async () => {
    const { logout } = await import('./token.ts');
    await logout(terminal, command.optsWithGlobals<Globals>());
  });
}

export function addUserCommands(noun: Command, terminal: Terminal): void {
  addLogin(noun.command('login').description('Sign in at the identity provider of the cluster'), terminal);
  addLogout(noun.command('logout').description('Sign out'), terminal);
  const get = noun.command('get-token').description('Print the token of the user, and nothing else');
  get.action(async () => {
    const { getToken } = await import('./token.ts');
    await getToken(terminal, get.optsWithGlobals<Globals>());
  });
  const set = noun.command('set-token').description('Sign in with a token, for example of a service account');
  addTargetFlags(set.argument('<token>', 'bearer token, or - for the standard input')).action(
    async (token: string, flags: TargetFlags) => {
      const { setToken } = await import('./token.ts');
      await setToken(terminal, set.optsWithGlobals<Globals>(), { token, flags });
    },
  );
}

export function addCredential(command: Command, terminal: Terminal): void {
  command
    .requiredOption('--session <file>', 'file with the session of the user')
    .action(async ({ session }: { session: string }) => {
      const { credential } = await import('./token.ts');
      await credential(terminal, session);
    });
}

function addTargetFlags(command: Command): Command {
  return command
    .option('--api-url <url>', 'HTTP API of Berth (default: the address in the settings)', parseAddress)
    .option('--server <url>', 'API server (default: the address from the HTTP API or the kubeconfig)')
    .option(
      '--certificate-authority <file>',
      'PEM file with the certificate of the private authority that signed the certificates of the HTTP API and the API server',
    );
}

function parseAddress(text: string): string {
  const address = parseApiURL(text);
  if (address === undefined) {
    throw new InvalidArgumentError(`It ${API_URL_FORM}.`);
  }
  return address;
}
