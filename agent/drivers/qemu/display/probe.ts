/** Finds out which screens the QEMU of this host can give its guests. */
import { run } from '../../../../base/exec.ts';
import { canPassSockets } from './socket.ts';
import type { DisplaySupport } from '../platform.ts';

/** Time limit of a program that prints its version or help. The program needs some 50 ms, or seconds on an overloaded host. */
const HELP_TIMEOUT_MILLISECONDS = 30_000;
/** Size of the largest screen that VNC shows, in pixels. QEMU cuts off the rest of a larger screen. */
const VNC_MAXIMUM = { width: 5120, height: 2160 };
const FORMER_VNC_MAXIMUM = { width: 2560, height: 2048 };
/** First version of QEMU that shows {@link VNC_MAXIMUM}: 9.1. Earlier versions show {@link FORMER_VNC_MAXIMUM}. */
const LARGE_VNC = { major: 9, minor: 1 };

export async function probeDisplay(binary: string): Promise<DisplaySupport> {
  const ask = async (...parameters: string[]) =>
    await run(binary, parameters, { timeoutMilliseconds: HELP_TIMEOUT_MILLISECONDS });
  const [version, displays, devices] = await Promise.all([
    ask('-version'),
    ask('-display', 'help'),
    ask('-device', 'help'),
  ]);
  return displaySupport({ version, displays, devices });
}

/** Returns what QEMU can do for screens. `said` has QEMU's output for `-version`, `-display help` and `-device help`. */
export function displaySupport(said: { version: string; displays: string; devices: string }): DisplaySupport {
  const [, major, minor] = /version (\d+)\.(\d+)/.exec(said.version) ?? [];
  const isLarge =
    Number(major) > LARGE_VNC.major ||
    (Number(major) === LARGE_VNC.major && Number(minor) >= LARGE_VNC.minor);
  return {
    virtioVga: said.devices.includes('"virtio-vga"'),
    dbus: /^dbus$/m.test(said.displays) && canPassSockets(),
    vncMaximum: isLarge ? VNC_MAXIMUM : FORMER_VNC_MAXIMUM,
  };
}
