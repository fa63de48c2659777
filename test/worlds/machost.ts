/**
 * A host with the bundle of the agent on a stand-in for macOS: Node.js says that it runs on a Mac, PATH has stand-ins for the programs of macOS
 * and nothing of Linux that macOS lacks, and `tart` is a stand-in too. Kernel, processes, network and API server are real.
 */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { stringify } from 'yaml';
import { findProgram } from '../../base/exec.ts';
import { killForCertain } from '../../agent/processes/process.ts';
import { stateFile } from '../../agent/drivers/tart/files.ts';
import { listFolders } from '../../base/files.ts';
import { NODES } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { bundleProgram } from '../../hack/cli/executable.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { type ProgramResult, StartedProgram } from '../wires/startedprogram.ts';
import { approveRequests } from './agenthost.ts';
import { makeTartProgram } from './tarthost.ts';

const STANDIN = join(import.meta.dirname, '../standins/mac/program/main.ts');
/** The bundle that the archive for Apple hosts has in its executable. */
const AGENT = 'berth-agent';
const READY_MILLISECONDS = 60_000;
const PROGRAM_MODE = 0o755;
/** Programs of this machine that macOS has too, with the options that the agent uses. */
const SHARED = ['ps', 'rm', 'df', 'sh', 'mkfifo'];
/** Identifiers that the stand-in for macOS tells. */
export const MAC = {
  version: '26.1',
  hardware: '7C5E4B8A-0F2D-5B1C-9E3A-1D2C3B4A5F60',
  boot: '1F0E2D3C-4B5A-4697-8877-66554433AA11',
};
/** Programs of macOS, as shell scripts. A test can replace them. */
const PROGRAMS = {
  sw_vers: `echo ${MAC.version}`,
  sysctl: `[ "$*" = '-n kern.bootsessionuuid' ] && echo ${MAC.boot}`,
  ioreg: `echo '    "IOPlatformUUID" = "${MAC.hardware}"'`,
};

/** What the agent touched that macOS does not have, and the programs that it started. */
export interface Notes {
  files: string[];
  programs: string[];
}

export class MacHost implements AsyncDisposable {
  readonly name: string;
  readonly configFile: string;
  readonly dataDirectory: string;
  readonly #cluster: Cluster;
  readonly #folder: string;
  readonly #stop = new AbortController();
  #agent: StartedProgram | undefined;

  private constructor(cluster: Cluster, name: string, folder: string) {
    this.#cluster = cluster;
    this.name = name;
    this.#folder = folder;
    this.configFile = join(folder, 'agent.yaml');
    this.dataDirectory = join(folder, 'data');
  }

  /** Makes the host with its bundle, its programs and its configuration. `settings` are added to the configuration of the agent. */
  static async make(
    cluster: Cluster,
    name: string,
    settings: Record<string, unknown> = {},
  ): Promise<MacHost> {
    const host = new MacHost(cluster, name, mkdtempSync(join(tmpdir(), 'berth-mac-')));
    await bundleProgram(AGENT, host.#folder);
    mkdirSync(host.#bin);
    for (const program of SHARED) {
      symlinkSync((await findProgram(program)) ?? '', join(host.#bin, program));
    }
    Object.entries(PROGRAMS).forEach(([program, script]) => host.replaceProgram(program, script));
    makeTartProgram(join(host.#bin, 'tart'));
    const { kubeconfig } = await cluster.createAgentBootstrap(name);
    const config = {
      nodeName: name,
      dataDirectory: host.dataDirectory,
      bootstrapKubeconfig: kubeconfig,
      address: '127.0.0.1',
      kubelet: { clientCAFile: join(cluster.directory, 'pki', 'ca.crt') },
      machines: { tart: join(host.#bin, 'tart') },
      ...settings,
    };
    writeFileSync(host.configFile, stringify(config));
    void approveRequests(cluster, name, host.#stop.signal);
    return host;
  }

  /** Replaces a program of macOS by a shell script. */
  replaceProgram(name: string, script: string): void {
    const path = join(this.#bin, name);
    writeFileSync(path, `#!/bin/sh\n# Stand-in for a program of macOS.\n${script}\n`);
    chmodSync(path, PROGRAM_MODE);
  }

  removeProgram(name: string): void {
    rmSync(join(this.#bin, name));
  }

  /** Starts the agent, and resolves when its Node is Ready. @throws Error with the log when the agent does not get so far. */
  async start(): Promise<void> {
    const agent = this.#run(['--config', this.configFile]);
    this.#agent = agent;
    const ended = agent
      .ended()
      .then(({ stderr, stdout }) => new Error(`the agent has ended: ${stdout}${stderr}`));
    const ready = waitFor(`node ${this.name} to be Ready`, async () => await this.#isReady(), {
      deadlineMilliseconds: READY_MILLISECONDS,
    });
    const first = await Promise.race([ready, ended]);
    if (first instanceof Error) {
      throw first;
    }
  }

  /** Ends the agent with SIGKILL and waits for its end. */
  async kill(): Promise<void> {
    this.#agent?.kill();
    await this.#agent?.ended();
  }

  /** Runs another command of the bundle to its end. */
  async run(parameters: readonly string[]): Promise<ProgramResult> {
    return await this.#run(parameters).ended();
  }

  /** Returns what the agent tells the cluster of the resources that its machines use. The API server asks no host on a loopback address. */
  async resources(): Promise<string> {
    const { status } = await this.#cluster.client().get(NODES, { name: this.name });
    const { clientCertificate: cert, clientKey: key } = await loadConnection({
      kubeconfigPath: this.#cluster.kubeconfig,
    });
    const port = status?.daemonEndpoints?.kubeletEndpoint?.Port;
    const options = {
      host: '127.0.0.1',
      port,
      path: '/metrics/resource',
      cert,
      key,
      rejectUnauthorized: false,
    };
    return await new Promise((resolve, reject) => {
      request({ ...options, agent: false }, (response) => resolve(text(response)))
        .on('error', reject)
        .end();
    });
  }

  /** Returns all notes of the stand-in for macOS so far. */
  notes(): Notes {
    const lines = existsSync(this.#notes) ? readFileSync(this.#notes, 'utf8').split('\n') : [];
    const noted = (kind: string): string[] => [
      ...new Set(
        lines.filter((line) => line.startsWith(`${kind} `)).map((line) => line.slice(kind.length + 1)),
      ),
    ];
    return { files: noted('file'), programs: noted('program') };
  }

  /** Returns the processes of machines, by the uid of their Pod. */
  async processes(): Promise<Map<string, number>> {
    const root = join(this.dataDirectory, 'machines');
    const found = new Map<string, number>();
    for (const uid of await listFolders(root)) {
      const { process } = (await stateFile(join(root, uid)).read()) ?? {};
      if (process !== undefined) {
        found.set(uid, process.pid);
      }
    }
    return found;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort(new Error('the test is over'));
    await this.kill();
    const root = join(this.dataDirectory, 'machines');
    for (const uid of await listFolders(root)) {
      const { process } = (await stateFile(join(root, uid)).read()) ?? {};
      if (process !== undefined) {
        await killForCertain(process);
      }
    }
    rmSync(this.#folder, { recursive: true, force: true });
  }

  get #bin(): string {
    return join(this.#folder, 'bin');
  }

  get #notes(): string {
    return join(this.#folder, 'notes');
  }

  #run(parameters: readonly string[]): StartedProgram {
    const command = ['--import', STANDIN, join(this.#folder, AGENT), ...parameters];
    const environment = { PATH: this.#bin, HOME: this.#folder, STANDIN_MAC_NOTES: this.#notes };
    return new StartedProgram(process.execPath, command, environment);
  }

  async #isReady(): Promise<boolean> {
    const { status } = await this.#cluster.client().get(NODES, { name: this.name });
    return status?.conditions?.some(({ type, status }) => type === 'Ready' && status === 'True') === true;
  }
}
