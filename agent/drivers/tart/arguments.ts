/** Builds the command line of a machine's process. */
import { join } from 'node:path';
import { GATEWAY, type GuestFilter } from '../../network/softnet.ts';
import type { MachineFolder, VmLaunchPlan } from '../driver.ts';
import type { TartState } from './files.ts';
import { nameOf } from './program.ts';

/**
 * Returns the arguments of the machine's process. Only guests with macOS can be suspended, and only if they were started so. Sound and
 * clipboard of the host are not for guests.
 */
export function runArguments(
  { uid, path }: MachineFolder,
  { seed, guest: { iso } }: Pick<VmLaunchPlan, 'seed' | 'guest'>,
  state: Pick<TartState, 'os' | 'screen' | 'filter'> | undefined,
): string[] {
  const drives = [seed && join(path, seed.disk), iso?.path].filter((file) => file !== undefined);
  const plain = ['run', nameOf(uid), '--no-graphics', '--no-audio', '--no-clipboard'];
  return [
    ...plain,
    ...(state?.os === 'darwin' ? ['--suspendable'] : []),
    ...(state?.screen === true ? ['--vnc-experimental'] : []),
    ...(state?.filter === undefined ? [] : filterOptions(state.filter)),
    ...drives.flatMap((file) => ['--disk', `${file}:ro`]),
  ];
}

/** Returns the options by which the program `softnet` filters the packets of the guest. The relay reaches the guest from its gateway. */
function filterOptions({ mayReach, mayNotReach }: GuestFilter): string[] {
  return [
    '--net-softnet',
    '--net-softnet-allow',
    [GATEWAY, ...mayReach].join(','),
    ...(mayNotReach.length === 0 ? [] : ['--net-softnet-block', mayNotReach.join(',')]),
  ];
}
