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

/** Limit of the threads of all processes of an emulator, beside one for each virtual processor. An emulator has some hundred. */
const THREADS = 1024;

/** Size of the file system in memory that an emulator sees as /dev/shm. The size is usual in containers, and counts as memory of the machine. */
const SHARED_MEMORY = '64m';

/**
 * Program, in Perl without modules, that shows the machine's folder at another path and then becomes its arguments. It runs in a mount
 * namespace of its own, so that no other process sees the mounts. The folders in which all users of the host may write are replaced by the
 * machine's own: files in the shared folders would outlive the machine, count for no quota, and reach other machines.
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
 * Returns the whole command. Each program becomes the next one by `exec`, so the process id stays. If the host removes a mount, the mount
 * also disappears from the machine's mount namespace. Otherwise this namespace would keep network namespaces of other machines.
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
