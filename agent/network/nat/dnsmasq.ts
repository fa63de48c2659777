/**
 * Provides DHCP and DNS for the guests. Each NAT network has one process of dnsmasq, which continues to run when the agent ends. After a
 * restart, the agent finds this process by its pid file. dnsmasq needs no lease file, because each machine's address is fixed: a restarted
 * dnsmasq gives the same addresses, and renews leases that it does not know.
 */
import { mkdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { pause } from '../../../base/time.ts';
import { hasCode, isMissing, undefinedIf, undefinedIfSync } from '../../../base/errors.ts';
import { writeWhole } from '../../../base/files.ts';
import { killByArgument } from '../../processes/process.ts';
import type { Attachment } from './attachments.ts';
import { run } from '../commands.ts';
import { sizeOf, toAddress } from './ipv4.ts';
import { type NatLayout, METADATA } from './layout.ts';

/** DNS name that the probe queries to test the network. Only Berth's dnsmasq knows this name. */
export const PROBE_NAME = 'probe.berth.internal';

/** Time to wait for dnsmasq's end after SIGTERM, and again after SIGKILL. dnsmasq normally ends within milliseconds of SIGTERM. */
const STOP_TIMEOUT_MILLISECONDS = 2_000;
const STOP_POLL_MILLISECONDS = 20;
/** Lease time of addresses. Guests renew their lease after half of this time, so each guest gets changed DHCP options within six hours. */
const LEASE_TIME = '12h';

/**
 * Largest number of DNS queries that wait for an answer. The default of dnsmasq is 150, which a single guest can reach. This number allows
 * for eight guests that send as many queries as the nftables rules let through. A waiting query needs a few hundred bytes of memory.
 */
const WAITING_QUERIES = 20_000;

function netmask(layout: NatLayout): string {
  return toAddress(2 ** 32 - sizeOf(layout.subnet));
}

/** DNS servers that dnsmasq asks for names that it does not know. */
export interface Upstream {
  /** Addresses of the servers. If the list is empty, dnsmasq asks the servers in a resolv.conf. */
  servers: readonly string[];
  /**
   * Path of the host's resolv.conf if it is not /etc/resolv.conf. This is so in a container, whose own resolv.conf can name the DNS server of
   * the cluster. Only root can read this path, so dnsmasq reads a copy.
   */
  resolvConf: string | undefined;
}

export class Dnsmasq {
  readonly #layout: NatLayout;
  readonly #upstream: Upstream;
  readonly #directory: string;
  readonly #pidFile: string;
  readonly #hostsFile: string;
  /** Argument of dnsmasq by which the agent recognises its own dnsmasq. No other agent of this host uses the same pid file. */
  readonly #mark: string;
  /** Copy of {@link Upstream.resolvConf} that dnsmasq can read. */
  readonly #resolvFile: string;
  /**
   * MAC addresses to which dnsmasq might have given leases since its start. The key is the leased address. Undefined if an earlier run of
   * the agent started dnsmasq.
   */
  #leases: Map<string, string> | undefined;

  constructor(layout: NatLayout, directory: string, upstream: Upstream) {
    this.#layout = layout;
    this.#upstream = upstream;
    this.#directory = directory;
    this.#resolvFile = join(directory, 'resolv.conf');
    this.#pidFile = join(directory, 'dnsmasq.pid');
    this.#mark = `--pid-file=${this.#pidFile}`;
    this.#hostsFile = join(directory, 'dhcp-hosts');
  }

  /**
   * Returns the pid of the running dnsmasq; undefined if dnsmasq does not run. The pid in an old file can belong to another process by now.
   * So the function checks that the command line of the process contains the path of the pid file.
   */
  async pid(): Promise<number | undefined> {
    return (await this.#running())?.pid;
  }

  async #running(): Promise<{ pid: number; args: string[] } | undefined> {
    const isGone = hasCode('ENOENT', 'ESRCH');
    const pid = Number.parseInt((await undefinedIf(isGone, readFile(this.#pidFile, 'utf8'))) ?? '', 10);
    const commandLine = await undefinedIf(isGone, readFile(`/proc/${pid}/cmdline`, 'utf8'));
    const args = commandLine?.split('\0').slice(0, -1) ?? [];
    return args.includes(this.#mark) ? { pid, args } : undefined;
  }

  /**
   * Takes over a dnsmasq that an earlier run of the agent started. If the arguments of dnsmasq are still correct, makes dnsmasq read the
   * list of machines again. The earlier run perhaps wrote the list, but ended before it could tell dnsmasq. If the arguments differ, stops
   * dnsmasq. They can differ after an update of the agent or a change of its configuration.
   */
  async takeOver(): Promise<void> {
    const parameters = this.#arguments();
    const running = await this.#running();
    if (running === undefined) {
      return;
    }
    if (!isDeepStrictEqual(running.args.slice(-parameters.length), parameters)) {
      await this.stop();
    } else {
      readAgain(running.pid);
    }
  }

  /** Returns whether dnsmasq's files contain exactly these attachments and the present DNS servers of the host. */
  async knows(attachments: readonly Attachment[]): Promise<boolean> {
    const isRight = [...(await this.#files(attachments))].map(
      async ([path, text]) => (await readText(path)) === text,
    );
    return (await Promise.all(isRight)).every(Boolean);
  }

  /**
   * Writes the list of machines, and the DNS servers of the host. If dnsmasq runs, also makes dnsmasq read the list. It notices changed DNS
   * servers by itself. If dnsmasq might still have the lease of an earlier machine for one of the addresses, restarts dnsmasq. Otherwise
   * the present machine would get no address until the end of that lease.
   */
  async tell(attachments: readonly Attachment[]): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o755 });
    for (const [path, text] of await this.#files(attachments)) {
      await writeWhole(path, text, 0o644);
    }
    const pid = await this.pid();
    const mustForget = this.#hasFormerLease(attachments);
    const kept = pid === undefined || mustForget ? [] : (this.#leases ?? []);
    this.#leases = new Map([...kept, ...attachments.map((one) => [one.address, one.macAddress] as const)]);
    if (pid !== undefined && mustForget) {
      await this.#end();
      await this.start();
    } else if (pid !== undefined) {
      readAgain(pid);
    }
  }

  /** Returns whether dnsmasq might have given the address of one of these machines to another machine. */
  #hasFormerLease(attachments: readonly Attachment[]): boolean {
    const leases = this.#leases;
    const isFree = ({ address, macAddress }: Attachment): boolean =>
      [undefined, macAddress].includes(leases?.get(address));
    return leases === undefined || !attachments.every(isFree);
  }

  /**
   * Starts dnsmasq, and resolves when dnsmasq is ready for queries. If somebody has removed the pid file, the earlier dnsmasq can still run.
   * Its ports would make the start fail, so the function first ends it. @throws ProgramError with dnsmasq's own message when the start fails.
   */
  async start(): Promise<void> {
    await killByArgument(this.#mark);
    await run('dnsmasq', this.#arguments());
  }

  /** Returns the paths and the wanted texts of the files that dnsmasq reads. */
  async #files(attachments: readonly Attachment[]): Promise<Map<string, string>> {
    const { innerMac: macAddress, innerAddress: address } = this.#layout.probe;
    const files = new Map([[this.#hostsFile, hostsText([{ macAddress, address }, ...attachments])]]);
    const { servers, resolvConf } = this.#upstream;
    if (servers.length === 0 && resolvConf !== undefined) {
      files.set(this.#resolvFile, (await readText(resolvConf)) ?? '');
    }
    return files;
  }

  async stop(): Promise<void> {
    await this.#end();
    await rm(this.#directory, { recursive: true, force: true });
  }

  /** Ends the process of dnsmasq, if it runs. */
  async #end(): Promise<void> {
    for (const name of ['SIGTERM', 'SIGKILL'] as const) {
      const pid = await this.pid();
      if (pid === undefined) {
        break;
      }
      signal(pid, name);
      await this.#gone();
    }
  }

  async #gone(): Promise<void> {
    const deadline = performance.now() + STOP_TIMEOUT_MILLISECONDS;
    while (performance.now() < deadline && (await this.pid()) !== undefined) {
      await pause(STOP_POLL_MILLISECONDS);
    }
  }

  #arguments(): string[] {
    const { bridge, gateway, subnet } = this.#layout;
    const namespaces = `${this.#layout.namespaces.prefix}*`;
    return [
      '--conf-file=/dev/null',
      this.#mark,
      '--user=nobody',
      // With this option, dnsmasq continues to serve the bridge after the bridge was deleted and created again.
      '--bind-dynamic',
      `--interface=${bridge}`,
      // dnsmasq provides only DNS to programs in network namespaces. DHCP is not necessary, because the agent sets the addresses of the
      // namespaces.
      `--interface=${namespaces}`,
      `--no-dhcp-interface=${namespaces}`,
      '--except-interface=lo',
      '--no-hosts',
      `--dns-forward-max=${WAITING_QUERIES}`,
      `--host-record=${PROBE_NAME},${gateway}`,
      `--dhcp-range=${toAddress(subnet.base)},static,${netmask(this.#layout)},${LEASE_TIME}`,
      `--dhcp-hostsfile=${this.#hostsFile}`,
      // This DHCP option contains two routes. The first route sends requests for metadata to the gateway, because some guests treat
      // 169.254.0.0/16 as their own link. The second route is the default route. It is necessary, because a guest that reads this option
      // ignores the usual option for the default route.
      `--dhcp-option=option:classless-static-route,${METADATA.address}/32,${gateway},0.0.0.0/0,${gateway}`,
      '--dhcp-ignore=tag:!known',
      // Without this option, a guest could choose a name such as `registry`. The DNS server would then give the guest's address to all
      // guests that ask for this name.
      '--dhcp-ignore-names',
      '--dhcp-authoritative',
      '--leasefile-ro',
      '--quiet-dhcp',
      ...this.#upstreamArguments(),
    ];
  }

  #upstreamArguments(): string[] {
    const { servers, resolvConf } = this.#upstream;
    if (servers.length > 0) {
      return ['--no-resolv', ...servers.map((one) => `--server=${one}`)];
    }
    return resolvConf === undefined ? [] : [`--resolv-file=${this.#resolvFile}`];
  }
}

async function readText(path: string): Promise<string | undefined> {
  return await undefinedIf(isMissing, readFile(path, 'utf8'));
}

function hostsText(attachments: readonly Pick<Attachment, 'macAddress' | 'address'>[]): string {
  return attachments.map((one) => `${one.macAddress},${one.address}\n`).join('');
}

/** Makes dnsmasq read the list of machines. */
function readAgain(pid: number): void {
  signal(pid, 'SIGHUP');
}

/** Sends a signal to a process. If the process has already ended, the function does nothing. */
function signal(pid: number, name: NodeJS.Signals): void {
  undefinedIfSync(hasCode('ESRCH'), () => process.kill(pid, name));
}
