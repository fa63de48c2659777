/**
 * Makes the key of a machine's memory. QEMU checks almost nothing when it loads the state of a machine: it accepts the state of another
 * processor, another accelerator or another version of QEMU, and the guest dies later. So the agent compares all of this itself, before it
 * starts anything. Names, paths, ports, addresses and IDs of a single machine are not part of the key.
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { formatQuantity } from '../../../api/v1alpha1/quantity.ts';
import type { ImageMemory } from '../../../api/v1alpha1/task.ts';
import type { MemoryFiles } from '../../disks/disk.ts';
import { type VmLaunchPlan, WarmStartRefused } from '../driver.ts';
import { type CommandLine, commandLine } from './arguments.ts';
import { startedWith } from './displaycard.ts';
import { wholeSectors } from './files.ts';
import type { GuestPlatform } from './platform.ts';

/** What the parts of a key stand for, in their order. Messages name the first part that differs. */
const PARTS = [
  'version of the hypervisor',
  'machine type',
  'accelerator',
  'processor',
  'firmware',
  'size of the disk',
  'list of devices',
  'kind of the network',
] as const;
/** Number of hexadecimal digits of each part. Eight parts make the length of a SHA-256. */
const PART_DIGITS = 8;
/** Options of QEMU whose values describe devices. */
const DEVICE_OPTIONS = new Set(['-device', '-global', '-fw_cfg']);
/** Properties of devices that belong to a single machine. */
const OWN_PROPERTY = /,(?:mac|guid|id)=[^,]*/g;

/**
 * Returns the key of the machine with this command line: 64 hexadecimal digits, of which each eight stand for one part. Two machines with
 * equal keys can have each other's memory.
 */
export async function memoryKey(command: CommandLine): Promise<string> {
  const { platform, state } = command;
  const parameters = commandLine({ ...command, incoming: false, memory: undefined });
  const firmware = platform.firmware === undefined ? '' : await readFile(platform.firmware.code);
  const parts: Record<(typeof PARTS)[number], string | Buffer> = {
    'version of the hypervisor': platform.version,
    'machine type': state.machineType,
    accelerator: platform.accelerator,
    processor: `${valuesOf(parameters, new Set(['-cpu'])).join()} ${await hostProcessor(platform.accelerator)}`,
    firmware,
    'size of the disk': String(wholeSectors(state.diskBytes ?? 0)),
    'list of devices': valuesOf(parameters, DEVICE_OPTIONS)
      .map((value) => value.replaceAll(OWN_PROPERTY, ''))
      .join('\n'),
    'kind of the network': command.plan.network.kind,
  };
  return PARTS.map((part) =>
    createHash('sha256').update(parts[part]).digest('hex').slice(0, PART_DIGITS),
  ).join('');
}

/** Kind of object from whose memory a machine starts. */
export type MemorySource = 'image' | 'snapshot';

/**
 * Checks that a machine can start from the memory of its image or snapshot.
 *
 * @throws WarmStartRefused with what differs.
 */
export async function requireSame(
  start: Pick<CommandLine, 'uid' | 'state' | 'platform'> & { plan: VmLaunchPlan; source: MemorySource },
  memory: ImageMemory,
): Promise<void> {
  const { plan, platform } = start;
  const { cpu, memoryBytes } = plan;
  if (cpu !== memory.cpu || memoryBytes !== memory.memoryBytes) {
    const [has, wants] = [memory, plan].map(
      (one) => `${one.cpu} CPUs and ${formatQuantity(one.memoryBytes)} of memory`,
    );
    throw new WarmStartRefused(
      'SizeDiffers',
      `The ${start.source} was saved with ${has}, but the VM has ${wants}`,
    );
  }
  const state = { ...start.state, launched: startedWith(plan, platform) };
  const key = await memoryKey({ ...start, state, cpu, memoryBytes, runAs: plan.runAs, incoming: false });
  const part = differingPart(memory.key, key);
  if (part !== undefined) {
    throw new WarmStartRefused('KeyDiffers', `The ${part} differs from the saved VM`);
  }
}

/**
 * Checks that no guest can change the memory of guests of other namespaces. An old QEMU opens the file with the memory for writing. So a guest
 * that has taken over its QEMU could change the file. `isEnclosed` says that processes of machines have a root directory of their own, in which
 * images can only be read.
 *
 * @throws WarmStartRefused when other namespaces use the image, or the old QEMU cannot open the file.
 */
export function requireSafe(
  { readOnlyMemory }: GuestPlatform,
  { isShared }: Pick<MemoryFiles, 'isShared'>,
  isEnclosed: boolean,
): void {
  if (readOnlyMemory || (isShared !== true && !isEnclosed)) {
    return;
  }
  const why = isEnclosed
    ? 'The agent of the host runs in a container'
    : 'VMs of several namespaces use the image on this host';
  throw new WarmStartRefused('NotSupported', `${why}, so this needs QEMU 8.2 or later`);
}

/** Returns the name of the first part in which two keys differ, or undefined if they are equal. */
function differingPart(left: string, right: string): string | undefined {
  const digits = (key: string, index: number): string =>
    key.slice(index * PART_DIGITS, (index + 1) * PART_DIGITS);
  return PARTS.find((_, index) => digits(left, index) !== digits(right, index));
}

function valuesOf(parameters: readonly string[], options: ReadonlySet<string>): string[] {
  return parameters.filter((_, index) => options.has(parameters[index - 1] ?? ''));
}

/** Lines of /proc/cpuinfo that say what a guest with the processor of the host can use. The names of ARM processors differ. */
const PROCESSOR_LINES =
  /^(?:vendor_id|cpu family|model|stepping|flags|CPU (?:implementer|part|variant)|Features)\s*:.*$/gm;

/** Returns a text that describes the processor of this host. An emulated processor does not depend on it, so the text is empty then. */
async function hostProcessor(accelerator: string): Promise<string> {
  if (accelerator === 'tcg') {
    return '';
  }
  const text = await readFile('/proc/cpuinfo', 'utf8');
  return [...new Set(text.match(PROCESSOR_LINES))].join('\n');
}
