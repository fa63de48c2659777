/** The checks of a host: each is a pure function of the facts. A check that does not apply to the host gives no finding. */
import { join } from 'node:path';
import { isDiskPressed } from '../disks/freedisk.ts';
import { homeOf } from '../drivers/tart/driver.ts';
import { bundleOf } from '../drivers/tart/files.ts';
import type { SoftnetObstacle } from '../network/softnet.ts';
import type { Hierarchy } from '../processes/cgroup.ts';
import type { Fact } from './fact.ts';
import type { ExaminedHost } from './facts.ts';
import type { LinuxFacts } from './linux.ts';
import { type MacFacts, SERVICE } from './mac.ts';

/** `ok`: nothing to do. `fix`: a person has to act. `unknown`: this program cannot find it out. */
export type CheckResult = 'ok' | 'fix' | 'unknown';

export interface Finding {
  readonly result: CheckResult;
  /** What was found, in one sentence. */
  readonly finding: string;
  /** What to do, if there is something to do. */
  readonly advice?: string;
}

export interface HostCheck {
  readonly name: string;
  readonly judge: (host: ExaminedHost) => Finding | undefined;
}

/** Earliest version of macOS that `tart` runs on. */
const LEAST_MACOS = 13;
/** Version of macOS since which the local network needs a permission. */
const LOCAL_NETWORK_MACOS = 15;
/** Longest lease with which addresses last on a busy host. The DHCP server of macOS has about 253, and gives one for a day by default. */
const LEASE_SECONDS = 600;
const DEFAULT_LEASE_SECONDS = 86_400;
/** Longest path of a socket on macOS, in bytes. The program `tart` has a socket in the folder of each machine. */
const MAC_SOCKET_BYTES = 103;
/** A uid as Kubernetes makes it. */
const UID = '00000000-0000-0000-0000-000000000000';
/** Difference of two clocks that disturbs nothing. Signers date certificates back by some minutes, so a minute is on the safe side. */
const CLOCK_MILLISECONDS = 60_000;
/** Controllers of control groups that limit machines. */
const CONTROLLERS = ['memory', 'pids', 'cpu'];
const UNAUTHORIZED = 401;
const INSTALL_TART = 'Install tart with `brew install cirruslabs/cli/tart`, or set machines.tart to its path';

export const CHECKS: readonly HostCheck[] = [
  { name: 'platform', judge: judgePlatform },
  { name: 'configuration', judge: judgeConfiguration },
  { name: 'user', judge: judgeUser },
  {
    name: 'log-writer',
    judge: ({ logWriter }) => judge(logWriter, () => ok('Perl writes the logs of machines'), 'Install Perl'),
  },
  { name: 'disk', judge: judgeDisk },
  onTart('tart', (mac) =>
    judge(mac.tart, (version) => ok(`The program tart has the version ${version}`), INSTALL_TART),
  ),
  onTart('softnet', (mac) => mac.softnet && judge(mac.softnet, judgeSoftnet)),
  onTart('data-directory', judgeDataDirectory),
  onMac('sleep', (mac) => judge(mac.power, judgeSleep)),
  onMac('power-failure', (mac) => judge(mac.power, judgePowerFailure)),
  onTart('file-vault', (mac) => judge(mac.fileVault, judgeFileVault)),
  onTart('automatic-login', (mac, host) => judge(mac.automaticLogin, (user) => judgeLogin(user, host))),
  onTart('leases', (mac) => judge(mac.leaseSeconds, judgeLease)),
  onTart('local-network', (mac) => judge(mac.version, judgeLocalNetwork)),
  onMac('quarantine', (mac, host) => judge(mac.isQuarantined, (isMarked) => judgeQuarantine(isMarked, host))),
  onMac('launchd', (mac) => judge(mac.service, judgeService)),
  onLinux('kvm', (linux) => judge(linux.kvm, judgeKvm)),
  onLinux('qemu', (linux) => judge(linux.qemu, ok, 'Install QEMU for the architecture of this host')),
  onLinux('network', (linux) => judge(linux.missingForNetwork, judgeNetwork)),
  onLinux('control-groups', (linux, host) =>
    judge(linux.controlGroups, (groups) => judgeGroups(groups, host)),
  ),
  { name: 'certificate', judge: judgeCertificate },
  { name: 'cluster', judge: judgeCluster },
  { name: 'clock', judge: judgeClock },
];

function onMac(
  name: string,
  judgeMac: (mac: MacFacts, host: ExaminedHost) => Finding | undefined,
): HostCheck {
  return { name, judge: (host) => (host.mac === undefined ? undefined : judgeMac(host.mac, host)) };
}

/** Makes a check of a Mac whose machines the program `tart` runs. */
function onTart(
  name: string,
  judgeMac: (mac: MacFacts, host: ExaminedHost) => Finding | undefined,
): HostCheck {
  return onMac(name, (mac, host) => (host.driver === 'tart' ? judgeMac(mac, host) : undefined));
}

function onLinux(name: string, judgeLinux: (linux: LinuxFacts, host: ExaminedHost) => Finding): HostCheck {
  return { name, judge: (host) => (host.linux === undefined ? undefined : judgeLinux(host.linux, host)) };
}

function ok(finding: string): Finding {
  return { result: 'ok', finding };
}

function fix(finding: string, advice: string): Finding {
  return { result: 'fix', finding, advice };
}

/** Judges a fact if it is known. If it is not, and `advice` says what helps, a person has to act. */
function judge<T>(fact: Fact<T>, judgeKnown: (known: T) => Finding, advice?: string): Finding {
  if ('known' in fact) {
    return judgeKnown(fact.known);
  }
  return advice === undefined ? { result: 'unknown', finding: fact.unknown } : fix(fact.unknown, advice);
}

function judgePlatform({ platform, architecture, mac, driver }: ExaminedHost): Finding {
  const computer = `${platform} on ${architecture}`;
  if (mac === undefined) {
    return platform === 'linux' && ['x64', 'arm64'].includes(architecture)
      ? ok(`This computer has ${computer}`)
      : fix(`This computer has ${computer}`, 'Use Linux on amd64 or arm64, or macOS on Apple silicon');
  }
  if (driver === 'qemu') {
    return ok(`This computer has macOS on ${architecture}, and its machines run with QEMU`);
  }
  return judge(mac.version, (version) =>
    majorOf(version) >= LEAST_MACOS && architecture === 'arm64'
      ? ok(`This computer has macOS ${version} on Apple silicon`)
      : fix(
          `This computer has macOS ${version} on ${architecture}`,
          `Use Apple silicon with macOS ${LEAST_MACOS} or later, or set machines.driver to qemu`,
        ),
  );
}

function majorOf(version: string): number {
  return Number(version.split('.')[0]);
}

function judgeConfiguration({ config }: ExaminedHost): Finding {
  if (config === undefined) {
    return {
      result: 'unknown',
      finding: 'No configuration was named, so disk, certificate, cluster and clock are not checked',
      advice: 'Name the file with --config',
    };
  }
  return judge(
    config,
    ({ nodeName }) => ok(`The configuration is for the Node ${nodeName}`),
    'Correct the file',
  );
}

function judgeUser({ isRoot, user, driver, config }: ExaminedHost): Finding {
  const who = `This program runs as ${user}`;
  if (driver === 'tart') {
    return isRoot ? fix(who, 'Run the agent, and this check, as the user who is logged in') : ok(who);
  }
  const network = config !== undefined && 'known' in config ? config.known.network.driver : undefined;
  return network === 'nat' && !isRoot ? fix(who, 'The network driver nat needs root. Run as root') : ok(who);
}

function judgeDisk({ disk, config }: ExaminedHost): Finding | undefined {
  if (disk === undefined || config === undefined || !('known' in config)) {
    return undefined;
  }
  const { minimumFree } = config.known.images;
  return judge(disk, (free) => {
    const gigabytes = (free.bytes / 1e9).toFixed(1);
    const finding = `${gigabytes} GB of the disk (${Math.round(free.share * 100)} %) are free`;
    return isDiskPressed(free, minimumFree, false)
      ? fix(finding, 'Free space in the data directory, or use a larger disk. The host gets no VMs now')
      : ok(finding);
  });
}

function judgeSoftnet(obstacle: SoftnetObstacle | undefined): Finding {
  return obstacle === undefined
    ? ok('The program softnet gets the rights of root')
    : fix(obstacle.finding, obstacle.advice);
}

function judgeDataDirectory(_: MacFacts, { config }: ExaminedHost): Finding | undefined {
  if (config === undefined || !('known' in config)) {
    return undefined;
  }
  const { dataDirectory } = config.known;
  const socket = join(bundleOf(homeOf(dataDirectory), UID), 'control.sock');
  const surplus = Buffer.byteLength(socket) - MAC_SOCKET_BYTES;
  return surplus > 0
    ? fix(
        `The path of dataDirectory (${dataDirectory}) is too long for sockets of machines`,
        `Choose a path that is at least ${surplus} bytes shorter`,
      )
    : ok('The path of dataDirectory leaves room for sockets of machines');
}

function judgeSleep(power: ReadonlyMap<string, number>): Finding {
  const minutes = power.get('sleep');
  if (minutes === undefined) {
    return { result: 'unknown', finding: 'The answer of pmset has no setting for sleep' };
  }
  return minutes === 0
    ? ok('The computer never sleeps')
    : fix(`The computer sleeps after ${minutes} minutes`, 'Run: sudo pmset -a sleep 0 disksleep 0');
}

function judgePowerFailure(power: ReadonlyMap<string, number>): Finding {
  const isOn = power.get('autorestart');
  if (isOn === undefined) {
    return ok('This computer has no setting for the start after a power failure');
  }
  return isOn === 1
    ? ok('The computer starts after a power failure')
    : fix('The computer stays off after a power failure', 'Run: sudo pmset -a autorestart 1');
}

function judgeFileVault(status: string): Finding {
  return /FileVault is Off/.test(status)
    ? ok('FileVault is off')
    : fix(
        `${status || 'FileVault tells nothing'}, so no user is logged in automatically`,
        'Switch FileVault off in System Settings, Privacy & Security',
      );
}

function judgeLogin(automatic: string | undefined, { user }: ExaminedHost): Finding {
  return automatic === user
    ? ok(`The user ${user} is logged in automatically`)
    : fix(
        `${automatic === undefined ? 'No user' : `The user ${automatic}`} is logged in automatically`,
        `Choose ${user} in System Settings, Users & Groups. Guests need the unlocked login keychain of this user`,
      );
}

function judgeLease(seconds: number | undefined): Finding {
  const finding = `Guests get their addresses for ${seconds ?? DEFAULT_LEASE_SECONDS} seconds`;
  return seconds !== undefined && seconds <= LEASE_SECONDS
    ? ok(finding)
    : fix(
        finding,
        `Run: sudo defaults write /Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist bootpd -dict-add DHCPLeaseTimeSecs -int ${LEASE_SECONDS}`,
      );
}

function judgeLocalNetwork(version: string): Finding {
  return majorOf(version) < LOCAL_NETWORK_MACOS
    ? ok(`macOS ${version} needs no permission for the local network`)
    : {
        result: 'unknown',
        finding: `macOS ${version} does not tell whether this program may connect to guests`,
        advice:
          'Allow it on the screen, in System Settings, Privacy & Security, Local Network, or set the preferences of the page about Apple hosts',
      };
}

function judgeQuarantine(isMarked: boolean, { program }: ExaminedHost): Finding {
  return isMarked
    ? fix(
        'This program has the mark of a downloaded file, so macOS may block it',
        `Run: sudo xattr -d com.apple.quarantine ${program}`,
      )
    : ok('This program has no mark of a downloaded file');
}

function judgeService(state: string | undefined): Finding {
  if (state === undefined) {
    return fix(
      `launchd has no service ${SERVICE} for this user`,
      `Run as the user who is logged in: launchctl bootstrap gui/$(id -u) /Library/LaunchAgents/${SERVICE}.plist`,
    );
  }
  return ['running', 'loaded'].includes(state)
    ? ok(`The service ${SERVICE} is ${state}`)
    : fix(`The service ${SERVICE} is in the state "${state}"`, 'Read the log of the agent');
}

function judgeKvm(kvm: 'usable' | 'missing' | 'forbidden'): Finding {
  if (kvm === 'usable') {
    return ok('/dev/kvm can be used');
  }
  return kvm === 'missing'
    ? fix(
        'There is no /dev/kvm, so guests are emulated and many times slower',
        'Switch virtualization on in the firmware of the computer, and load kvm_intel or kvm_amd',
      )
    : fix('This user may not use /dev/kvm, so guests are emulated', 'Add the user to the group kvm');
}

function judgeNetwork(missing: readonly string[]): Finding {
  return missing.length === 0
    ? ok('The network driver has all that it needs')
    : fix(`The network driver lacks ${missing.join(', ')}`, 'Install the packages');
}

function judgeGroups(hierarchies: readonly Hierarchy[], { isRoot }: ExaminedHost): Finding {
  const missing = CONTROLLERS.filter(
    (one) => !hierarchies.some(({ controllers }) => controllers.includes(one)),
  );
  if (!isRoot) {
    return ok('Without root, machines have no control groups');
  }
  return missing.length === 0
    ? ok(`Control groups of version ${hierarchies[0]?.version} limit machines`)
    : fix(
        `Control groups limit no ${missing.join(', ')}`,
        'Use a kernel with control groups of version 2. Until then, a machine can take more than its share',
      );
}

function judgeCertificate({ certificate, config }: ExaminedHost): Finding | undefined {
  if (certificate === undefined || config === undefined || !('known' in config)) {
    return undefined;
  }
  if (config.known.kubeconfig !== undefined) {
    return ok('The agent uses the credentials of its kubeconfig');
  }
  return judge(certificate, (found) => {
    if (found === undefined) {
      return {
        result: 'unknown',
        finding: 'This host has not joined a cluster yet',
        advice: 'Start the agent. It joins with its bootstrap kubeconfig',
      };
    }
    const end = found.validTo.toISOString();
    return found.isUsable
      ? ok(`The certificate of this host is valid until ${end}`)
      : fix(
          `The certificate of this host (valid until ${end}) has expired, or is for another Node`,
          'Make a new bootstrap kubeconfig, and restart the agent',
        );
  });
}

function judgeCluster({ cluster }: ExaminedHost): Finding | undefined {
  const advice = 'Check the address in the kubeconfig, the network, and that the API server runs';
  return (
    cluster &&
    judge(
      cluster,
      ({ server, status }) => {
        if (status === UNAUTHORIZED) {
          return fix(
            `The API server ${server} refuses the credentials of this host`,
            'Make a new bootstrap kubeconfig, and restart the agent',
          );
        }
        return status < 400 || status === 403
          ? ok(`The API server ${server} answers`)
          : fix(`The API server ${server} answers with HTTP status ${status}`, advice);
      },
      advice,
    )
  );
}

function judgeClock({ cluster }: ExaminedHost): Finding | undefined {
  if (cluster === undefined || !('known' in cluster)) {
    return undefined;
  }
  const { aheadMilliseconds: ahead } = cluster.known;
  if (ahead === undefined) {
    return { result: 'unknown', finding: 'The API server tells no time' };
  }
  const seconds = Math.round(Math.abs(ahead) / 1000);
  const finding = `The clock of this host is ${seconds} s ${ahead < 0 ? 'behind' : 'ahead of'} that of the API server`;
  return Math.abs(ahead) <= CLOCK_MILLISECONDS
    ? ok(finding)
    : fix(finding, 'Let NTP set the clock. Certificates are refused if clocks differ');
}
