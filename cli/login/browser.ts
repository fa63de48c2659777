/** Opens the browser of the user. */
import { spawn } from 'node:child_process';
import type { Environment } from '../settings.ts';

/** Opens an address. It must not throw: the address is also on the terminal. */
export type OpenBrowser = (address: string) => void;

/** Returns the program that opens an address, or undefined if there is no browser here: on a server, or in a session from elsewhere. */
export function browserCommand(
  { BROWSER: own = '', SSH_CONNECTION: remote, DISPLAY: display, WAYLAND_DISPLAY: wayland }: Environment,
  platform: string = process.platform,
): readonly string[] | undefined {
  const [first = ''] = own.split(':');
  if (first.trim() !== '') {
    return first.trim().split(/\s+/);
  }
  if (remote) {
    return undefined;
  }
  if (platform === 'darwin') {
    return ['open'];
  }
  if (platform === 'win32') {
    return ['rundll32', 'url.dll,FileProtocolHandler'];
  }
  return display || wayland ? ['xdg-open'] : undefined;
}

/** Returns a function that opens an address without a shell. The browser may run longer than the command. */
export function opener(command: readonly string[]): OpenBrowser {
  const [program = '', ...args] = command;
  return (address) => {
    const child = spawn(program, [...args, address], { stdio: 'ignore', detached: true });
    child.on('error', () => undefined);
    child.unref();
  };
}
