/** Stand-in for the Android emulator: the guest with Debian's adbd, run by QEMU as a child that ends with the stand-in. */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/** The guest needs much less than Android. */
const MEMORY_MEBIBYTES = 256;
const MACHINES = {
  amd64: { program: 'qemu-system-x86_64', machine: ['-M', 'q35'], console: 'ttyS0' },
  arm64: {
    program: 'qemu-system-aarch64',
    machine: ['-M', 'virt', '-cpu', 'cortex-a72'],
    console: 'ttyAMA0',
  },
};
/** Line of the guest's first process (`hack/guest/adbd/init.sh`). */
const BOOT_LINE = 'adbd guest: boot completed';

export type GuestArchitecture = keyof typeof MACHINES;

export interface GuestStart {
  guest: GuestArchitecture;
  imageFolder: string;
  adbPort: number;
  /** Milliseconds until `sys.boot_completed` is 1; undefined for a boot that never completes. */
  bootAfter: number | undefined;
  onLine: (line: string) => void;
  onBooted: () => void;
  onEnd: (code: number | null) => void;
}

/** Starts the guest. Its port for ADB accepts connections at once; adbd answers later. */
export function startGuest(start: GuestStart): { kill: () => void } {
  const { program, machine, console } = MACHINES[start.guest];
  const boot = start.bootAfter === undefined ? 'never' : String(start.bootAfter / 1000);
  const qemu = [
    ['-accel', 'tcg', '-m', String(MEMORY_MEBIBYTES), '-nodefaults', '-display', 'none'],
    ['-serial', 'stdio', '-no-reboot'],
    ['-kernel', join(start.imageFolder, 'kernel-ranchu')],
    ['-initrd', join(start.imageFolder, 'ramdisk.img')],
    ['-append', `console=${console} loglevel=4 panic=-1 berth.boot=${boot}`],
    ['-netdev', `user,id=net,hostfwd=tcp:127.0.0.1:${start.adbPort}-:5555`],
    ['-device', 'virtio-net-pci,netdev=net,romfile='],
  ];
  // The kernel ends QEMU with the stand-in, however that ends.
  const child = spawn('setpriv', ['--pdeathsig=KILL', program, ...machine, ...qemu.flat()], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  createInterface({ input: child.stdout }).on('line', (line) => {
    start.onLine(line);
    if (line.includes(BOOT_LINE)) {
      start.onBooted();
    }
  });
  child.once('error', () => start.onEnd(null));
  child.once('exit', start.onEnd);
  return { kill: () => child.kill('SIGKILL') };
}
