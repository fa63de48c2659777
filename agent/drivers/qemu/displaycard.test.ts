import { expect, it } from 'vitest';
import type { Machine } from '../../../api/v1alpha1/machine.ts';
import { displayFields } from '../../../test/fixtures/display.ts';
import type { GuestNetwork } from '../../network/network.ts';
import type { Architecture, VmLaunchPlan } from '../driver.ts';
import { displayState, resumedWith, screenArguments, startedWith } from './displaycard.ts';
import { displaySupport, type GuestPlatform } from './platform.ts';

const FULL_HD = { width: 1920, height: 1080, dpi: 120 };
const LARGE = { width: 3840, height: 2160, dpi: 192 };
const HELP = { displays: 'none\ndbus\n', devices: 'name "virtio-vga", bus PCI\n' };

function platform(
  architecture: Architecture,
  said: Partial<typeof HELP & { version: string }> = {},
): GuestPlatform {
  const version = 'QEMU emulator version 7.2.22 (Debian 1:7.2)\n';
  return {
    architecture,
    binary: 'qemu',
    machineType: 'pc-q35-7.2',
    accelerator: 'tcg',
    firmware: undefined,
    display: displaySupport({ version, ...HELP, ...said }),
    runWith: false,
    version: '7.2.22',
    readOnlyMemory: false,
  };
}

function plan(vnc: boolean, display?: typeof FULL_HD): VmLaunchPlan {
  const fields = display && displayFields(display.width, display.height, display.dpi);
  const vm = { vnc: { enabled: vnc }, ...fields } as Machine;
  const network: GuestNetwork = {
    kind: 'user',
    macAddress: '',
    address: undefined,
    hostAddress: '127.0.0.1',
    ports: [],
  };
  return { guest: { vm, diskSizeBytes: undefined, iso: undefined }, cpu: 1, memoryBytes: 1, network };
}

const AMD64 = platform('amd64');
const launch = (launched: { screen?: unknown } | undefined, vnc: boolean, on = AMD64) =>
  screenArguments((launched as ReturnType<typeof startedWith>).screen, vnc, on).join(' ');

it('a machine has no card unless its VM asks for a display or VNC', () => {
  expect(launch(startedWith(plan(false), AMD64), false)).toBe('-display none');
  expect(launch(startedWith(plan(true), AMD64), true)).toBe(
    '-display none -vnc unix:vnc.sock,share=force-shared -device virtio-vga -device qemu-xhci -device usb-tablet',
  );
});

it('a USB keyboard takes no keys from the PS/2 keyboard, which only amd64 machines have', () => {
  const arm64 = platform('arm64');
  expect(launch(startedWith(plan(true), arm64), true, arm64)).toMatch(/-device usb-tablet -device usb-kbd$/);
  expect(launch(startedWith(plan(true), AMD64), true)).not.toContain('usb-kbd');
});

it('a display has its size on the card, and QEMU a D-Bus display for its DPI', () => {
  const dbus =
    '-display dbus,p2p=yes -chardev socket,id=display,path=display.sock,server=on,wait=off -mon chardev=display,mode=control';
  expect(launch(startedWith(plan(false, FULL_HD), AMD64), false)).toBe(
    `${dbus} -device virtio-vga,xres=1920,yres=1080`,
  );
  expect(launch(startedWith(plan(false, FULL_HD), platform('arm64')), false)).toBe(
    `${dbus} -device virtio-gpu-pci,xres=1920,yres=1080`,
  );
});

it.each([
  ['card', { devices: '' }, '-display none -device VGA,xres=1920,yres=1080'],
  ['D-Bus display', { displays: 'none\n' }, '-display none -device virtio-vga,xres=1920,yres=1080'],
])('a QEMU without the %s gives the size, and the VM hears that there is no DPI', (_, said, expected) => {
  const { screen } = startedWith(plan(false, FULL_HD), platform('amd64', said));
  expect(launch({ screen }, false)).toBe(expected);
  expect(screen?.dbus).toBe(false);
  expect(screen && displayState(screen, 'QEMU is old')).toEqual({
    ready: false,
    reason: 'NoDPI',
    message:
      'The graphics card offers the guest a screen of 1920×1080 pixels. The DPI of the screen is not set to 120: QEMU is old',
  });
});

it('a machine is resumed with the card of its start, also if QEMU has another one now', () => {
  const started = startedWith(plan(true, FULL_HD), AMD64);
  expect(launch(started, true)).toContain('-device virtio-vga,');
  const later = platform('amd64', { devices: '' });
  expect(launch(resumedWith(started, plan(true, FULL_HD), later), true)).toContain('-device virtio-vga,');
});

it('reports which part of a large screen VNC shows', () => {
  const { screen } = startedWith(plan(true, LARGE), AMD64);
  expect(screen && displayState(screen)).toEqual({
    ready: false,
    reason: 'ScreenCropped',
    message:
      'The graphics card offers the guest a screen of 3840×2160 pixels, but VNC shows only 2560×2048 of them. QEMU 9.1 or later shows the whole screen',
  });
  expect(startedWith(plan(false, LARGE), AMD64).screen?.cropped).toBeUndefined();
  for (const [version, isCropped] of [
    ['QEMU emulator version 9.0.4', true],
    ['QEMU emulator version 9.1.0', false],
    ['QEMU emulator version 10.0.2 (Debian)', false],
  ] as const) {
    const { screen: other } = startedWith(plan(true, LARGE), platform('amd64', { version }));
    expect(other?.cropped !== undefined).toBe(isCropped);
  }
});
