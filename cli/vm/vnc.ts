/** Shows the screen of a VM in a viewer of this computer. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { SCREEN_PORT } from '../../api/v1alpha1/names.ts';
import { withCluster } from '../cluster.ts';
import type { Globals } from '../globals.ts';
import { runningVM } from '../streams/machine.ts';
import type { Terminal } from '../terminal.ts';
import { Forwards } from './portforward.ts';

interface Viewer {
  readonly program: string;
  readonly argument: (port: number) => string;
  /** Whether the program runs until the user closes the viewer. */
  readonly stays: boolean;
}

const address = (port: number): string => `vnc://127.0.0.1:${port}`;
/** Viewers in the order in which they are tried. */
const VIEWERS: readonly Viewer[] = [
  // `vncviewer` reads a number after two colons as a port. It reads a number after one colon as the number of a display.
  { program: 'vncviewer', argument: (port) => `127.0.0.1::${port}`, stays: true },
  { program: 'remote-viewer', argument: address, stays: true },
  { program: process.platform === 'darwin' ? 'open' : 'xdg-open', argument: address, stays: false },
];

/**
 * Opens a viewer, and writes the address of the screen for other viewers. Resolves when the user closes the viewer or ends this command.
 * Some programs only start a viewer, and then end at once. The end of such a program does not end this command.
 */
export async function vnc(terminal: Terminal, globals: Globals, name: string): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await runningVM(cluster, name, terminal.signal);
    await using forwards = new Forwards(terminal, cluster, vm);
    const port = await forwards.open({ local: 0, remote: SCREEN_PORT });
    terminal.out(`The screen of VM ${name} is at ${address(port)}\n`);
    const viewer = hasScreen(terminal) ? await openViewer(port) : undefined;
    if (viewer === undefined) {
      terminal.err(
        'No viewer was found. Open this address in a VNC viewer. Press Ctrl+C to end this command\n',
      );
    } else if (viewer.stays) {
      void viewer.ended.then(() => forwards.end());
    }
    await forwards.ended();
  });
}

/** Reports whether a viewer can show a window on this computer. */
function hasScreen({ environment }: Terminal): boolean {
  const { DISPLAY: x11 = '', WAYLAND_DISPLAY: wayland = '' } = environment;
  return process.platform === 'darwin' || x11 + wayland !== '';
}

/** Starts the first viewer that exists. The viewer can run longer than this command. The result is undefined if no viewer exists. */
async function openViewer(port: number): Promise<{ stays: boolean; ended: Promise<unknown> } | undefined> {
  for (const { program, argument, stays } of VIEWERS) {
    const child = spawn(program, [argument(port)], { stdio: 'ignore' });
    try {
      await once(child, 'spawn');
      // With `unref`, this command can end before the viewer, for example after the VM was deleted.
      child.unref();
      return { stays, ended: once(child, 'exit') };
    } catch {
      // This viewer cannot be started, so the loop tries the next one.
    }
  }
  return undefined;
}
