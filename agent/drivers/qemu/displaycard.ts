/** Chooses the graphics card of a machine, makes its arguments for QEMU, and tells users which screen the guest has. */
import { displayOf } from '../../../api/v1alpha1/machine.ts';
import type { DisplayState, VmLaunchPlan } from '../driver.ts';
import type { GuestPlatform } from './platform.ts';
import { FILES, type MachineFile, type Screen } from './state.ts';

/**
 * Arguments for a D-Bus display to which clients connect directly, without a bus. The clients connect over a second socket of the machine
 * protocol (QMP), because one QMP socket serves only one client.
 */
const DBUS_DISPLAY: readonly string[] = [
  '-display',
  'dbus,p2p=yes',
  '-chardev',
  `socket,id=display,path=${FILES.display},server=on,wait=off`,
  '-mon',
  'chardev=display,mode=control',
];

type Launched = NonNullable<MachineFile['launched']>;

/** Returns the content of the field `launched` in the state file of a machine that starts. For a resume, use {@link resumedWith}. */
export function startedWith(plan: VmLaunchPlan, platform: GuestPlatform): Launched {
  const { cpu, memoryBytes, runAs, seed } = plan;
  const screen = screenWith(cardFor(plan, platform), plan, platform);
  const { accelerator } = platform;
  const { vm, iso } = plan.guest;
  const devices = { network: plan.network.kind, vnc: vm.vnc.enabled, iso: iso !== undefined };
  return { cpu, memoryBytes, accelerator, runAs, seed, screen, devices };
}

/**
 * Returns the content of the field `launched` in the state file of a machine that resumes. The content keeps the graphics card from the
 * machine's start, because the resumed guest expects this card. This also holds after an upgrade of the agent or of QEMU.
 */
export function resumedWith(launched: Launched, plan: VmLaunchPlan, platform: GuestPlatform): Launched {
  return { ...launched, runAs: plan.runAs, screen: screenWith(launched.screen.card, plan, platform) };
}

function cardFor(plan: VmLaunchPlan, { architecture, display }: GuestPlatform): Screen['card'] {
  const { vm } = plan.guest;
  if (!vm.vnc.enabled && displayOf(vm) === undefined) {
    return undefined;
  }
  if (architecture === 'arm64') {
    return 'virtio-gpu-pci';
  }
  return display.virtioVga ? 'virtio-vga' : 'VGA';
}

function screenWith(card: Screen['card'], plan: VmLaunchPlan, platform: GuestPlatform): Screen {
  const { vnc } = plan.guest.vm;
  const display = displayOf(plan.guest.vm);
  if (display === undefined) {
    return { card, dbus: false };
  }
  // QEMU cannot set the DPI of its older card, `VGA`.
  const dbus = platform.display.dbus && card !== undefined && card !== 'VGA';
  const most = platform.display.vncMaximum;
  const cropped = {
    width: Math.min(display.width, most.width),
    height: Math.min(display.height, most.height),
  };
  const isCropped = cropped.width < display.width || cropped.height < display.height;
  return { card, display, dbus, ...(vnc.enabled && isCropped ? { cropped } : {}) };
}

/**
 * Devices with which VNC sends keys and the pointer. The tablet gives the pointer positions on the screen; a PS/2 mouse has only movements. An
 * amd64 machine has a PS/2 keyboard, which also firmware and guests without a USB driver read. A USB keyboard would take its keys away.
 */
const INPUTS: Readonly<Record<GuestPlatform['architecture'], readonly string[]>> = {
  amd64: ['usb-tablet'],
  arm64: ['usb-tablet', 'usb-kbd'],
};

/**
 * Returns QEMU's arguments for the screen: the card, the display with which the agent sets the DPI, and VNC with its input devices if it is
 * served.
 */
export function screenArguments(
  screen: Screen | undefined,
  isServed: boolean,
  { architecture }: Pick<GuestPlatform, 'architecture'>,
): string[] {
  const { card, display, dbus } = screen ?? { dbus: false };
  const size = display === undefined ? '' : `,xres=${display.width},yres=${display.height}`;
  return [
    ...(dbus ? DBUS_DISPLAY : ['-display', 'none']),
    ...(isServed ? ['-vnc', `unix:${FILES.vnc},share=force-shared`] : []),
    ...(card === undefined ? [] : ['-device', `${card}${size}`]),
    ...(isServed ? ['qemu-xhci', ...INPUTS[architecture]].flatMap((device) => ['-device', device]) : []),
  ];
}

/**
 * Returns the state of a screen for the VM's status; undefined if the VM asks for no display. `fault` is the reason why the DPI is not set.
 */
export function displayState({ display, cropped }: Screen, fault?: string): DisplayState | undefined {
  if (display === undefined) {
    return undefined;
  }
  const { width, height, dpi } = display;
  const has = `The graphics card offers the guest a screen of ${width}×${height} pixels`;
  const dpiFault = fault === undefined ? [] : [`The DPI of the screen is not set to ${dpi}: ${fault}`];
  if (cropped !== undefined) {
    const shows = `${has}, but VNC shows only ${cropped.width}×${cropped.height} of them`;
    const message = [shows, `QEMU 9.1 or later shows the whole screen`, ...dpiFault].join('. ');
    return { ready: false, reason: 'ScreenCropped', message };
  }
  return fault === undefined
    ? { ready: true, reason: 'DisplaySet', message: `${has} and ${dpi} DPI` }
    : { ready: false, reason: 'NoDPI', message: [has, ...dpiFault].join('. ') };
}
