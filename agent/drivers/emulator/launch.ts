/** Starts an emulator in its network namespace, as the machine's own user. */
import { EMULATOR_MEMORY_OVERHEAD_BYTES } from '../../../api/v1alpha1/emulatormachine.ts';
import { withLogWriter } from '../../console/logwriter.ts';
import type { MachineLimits } from '../../processes/cgroup.ts';
import type { MachineCgroups } from '../../processes/cgroup.ts';
import type { EmulatorLaunchPlan, MachineFolder } from '../driver.ts';
import { launch, type Launched } from '../launch.ts';
import type { Acceleration } from './acceleration.ts';
import { commandLine, environment, FOLDERS, words } from './arguments.ts';
import { MACHINE_PLACE } from './files.ts';

/**
 * Largest number of threads of all processes of an emulator, in addition to one thread for each virtual processor. An emulator has some
 * hundreds of threads.
 */
const THREADS = 1024;

/**
 * Size of an emulator's file system /dev/shm. Containers usually have the same size. This file system is in memory, so its used part counts
 * as memory of the machine.
 */
const SHARED_MEMORY = '64m';

/**
 * Program in Perl, without modules. The program runs in a separate mount namespace, so that no other process sees its mounts. It mounts the
 * machine's folder at another path. It also mounts folders of the machine over the folders in which all users of the host can write.
 * Otherwise the machine's files there would outlive the machine. They would also be outside all quotas, and visible to other machines. Then
 * the program executes the command in its arguments.
 */
const PLACE = String.raw`
my ($folder, $place, $temporary, $shared, @command) = @ARGV;
-d $place or mkdir($place, 0755) or -d $place or die "$place: $!\n";
sub place { system('mount', @_) == 0 or die "$_[-1] cannot be mounted for the machine\n"; }
place('--bind', $folder, $place);
place('--bind', "$place/$temporary", $_) for '/tmp', '/var/tmp';
place('-t', 'tmpfs', '-o', "nosuid,nodev,mode=1777,size=$shared", 'tmpfs', '/dev/shm');
chdir $place or die "$place: $!\n";
exec { $command[0] } @command or die "$command[0]: $!\n";
`;

export interface EmulatorStart {
  plan: EmulatorLaunchPlan;
  program: string;
  sdk: string;
  acceleration: Acceleration | undefined;
  /** Whether the agent runs in a container. The emulator then runs in the host's own file system, beside the host's SDK. */
  isContained: boolean;
}

export async function launchEmulator(
  folder: MachineFolder,
  start: EmulatorStart,
  cgroups: MachineCgroups,
): Promise<Launched> {
  const { plan, sdk } = start;
  const options = {
    name: 'emulator',
    command: enclosed(folder, start),
    environment: environment(MACHINE_PLACE, sdk),
    limits: limitsOf(plan),
  };
  return await launch(folder, options, cgroups);
}

/**
 * Returns the whole command. Each program of the command executes the next program by `exec`, so the process id stays the same.
 * `--propagation slave` means that a mount that the host removes also disappears from the machine's mount namespace. Otherwise this
 * namespace would keep the network namespaces of other machines.
 */
function enclosed(folder: MachineFolder, start: EmulatorStart): [string, ...string[]] {
  const { plan, program, acceleration, isContained } = start;
  const { cpu, memoryBytes, network } = plan;
  const own = commandLine({
    program,
    uid: folder.uid,
    cpu,
    memoryBytes,
    isAccelerated: acceleration !== undefined,
    dnsServer: network.dnsServer,
  });
  return [
    'nsenter',
    `--net=${network.path}`,
    ...(isContained ? ['--mount=/proc/1/ns/mnt'] : []),
    ...words('--', 'unshare', '--ipc', '--mount', '--propagation', 'slave', '--'),
    ...words('perl', '-e', PLACE, folder.path, MACHINE_PLACE, FOLDERS.temporary, SHARED_MEMORY),
    ...withLogWriter([...asUser(plan.runAs, acceleration?.groups ?? []), ...own], 'serial'),
  ];
}

function asUser(runAs: EmulatorLaunchPlan['runAs'], groups: readonly number[]): string[] {
  if (runAs === undefined) {
    return [];
  }
  return [
    ...words('setpriv', `--reuid=${runAs.uid}`, `--regid=${runAs.gid}`),
    groups.length === 0 ? '--clear-groups' : `--groups=${groups.join(',')}`,
    ...words('--inh-caps=-all', '--bounding-set=-all', '--no-new-privs', '--'),
  ];
}

function limitsOf({ cpu, memoryBytes }: EmulatorLaunchPlan): MachineLimits {
  return { cpu, memoryBytes: memoryBytes + EMULATOR_MEMORY_OVERHEAD_BYTES, processes: THREADS + cpu };
}
