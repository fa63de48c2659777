/** Opens the browser of the user. */
import { spawn } from 'node:child_process';
import type { Environment } from '../config/settingsfile.ts';

/**
 * Opens an address in a browser. The function must not throw. If no browser opens, the user can still open the address that the terminal
 * shows.
 */
export type OpenBrowser = (address: string) => void;

/**
 * Returns the program that opens an address in a browser, and the arguments of this program. The result is undefined if the user has no
 * browser on this computer, for example on a server or in a session over SSH.
 */
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

/** Returns a function that starts the program with an address. The function uses no shell. The browser can run longer than this command. */
export function opener(command: readonly string[]): OpenBrowser {
  const [program = '', ...args] = command;
  return (address) => {
    const child = spawn(program, [...args, address], { stdio: 'ignore', detached: true });
    child.on('error', () => undefined);
    child.unref();
  };
}
