/** Reads the facts about this host that the checks need. Nothing on the host is changed. */
import { X509Certificate } from 'node:crypto';
import { access } from 'node:fs/promises';
import { userInfo } from 'node:os';
import { dirname } from 'node:path';
import { ConfigError } from '../../base/config.ts';
import { isMissing, isOfSystem, messageOf, undefinedIf, undefinedIfSync } from '../../base/errors.ts';
import { type Connection, loadConnection } from '../../kube/credentials.ts';
import { createPool } from '../../kube/pool.ts';
import { TokenSource } from '../../kube/tokensource.ts';
import { exchange } from '../../kube/transport.ts';
import { type AgentConfig, loadConfig, machineDriver, TART } from '../config.ts';
import { type FreeDisk, freeDisk } from '../disks/freedisk.ts';
import { requireLogWriter } from '../drivers/machineprocess.ts';
import { homeOf } from '../drivers/tart/driver.ts';
import { softnetBeside } from '../network/softnet.ts';
import { identityFiles, isUsable, readPair } from '../identity/certificates.ts';
import { type Fact, readFact } from './fact.ts';
import { type LinuxFacts, readLinux } from './linux.ts';
import { type InstalledPrograms, type MacFacts, readMac } from './mac.ts';

export interface ExaminedHost {
  /** Operating system and processor as Node.js names them. */
  readonly platform: string;
  readonly architecture: string;
  readonly isRoot: boolean;
  readonly user: string;
  /** Path of the file that runs: the executable of the agent, or Node.js. */
  readonly program: string;
  /** The agent's configuration. Undefined if no file was named. */
  readonly config: Fact<AgentConfig> | undefined;
  /** Driver of machines, by the configuration or by the computer. */
  readonly driver: 'qemu' | 'tart';
  readonly logWriter: Fact<true>;
  /** Absent without a configuration, as the two facts below. */
  readonly disk?: Fact<FreeDisk>;
  /** The known fact is undefined if the host has not joined. */
  readonly certificate?: Fact<ClientCertificate | undefined>;
  readonly cluster?: Fact<ClusterAnswer>;
  readonly mac: MacFacts | undefined;
  readonly linux: LinuxFacts | undefined;
}

interface ClientCertificate {
  readonly validTo: Date;
  /** Whether the certificate is valid now, and for the configured Node. */
  readonly isUsable: boolean;
}

interface ClusterAnswer {
  readonly server: string;
  readonly status: number;
  /** Time by which the clock of this host is ahead of that of the API server, in milliseconds. Undefined if the answer has no time. */
  readonly aheadMilliseconds: number | undefined;
}

/** Time limit for the answer of the API server. A person waits for the result. */
const ANSWER_MILLISECONDS = 10_000;

/** Reads all facts. `file` is the agent's configuration. `now` is the clock of the host, in milliseconds since the epoch. */
export async function examineHost(file: string | undefined, now = Date.now): Promise<ExaminedHost> {
  const config = file === undefined ? undefined : readConfiguration(file);
  const settings = config !== undefined && 'known' in config ? config.known : undefined;
  const isRoot = process.getuid?.() === 0;
  const [logWriter, ofSettings, ofSystem] = await Promise.all([
    readFact(readLogWriter),
    settings === undefined ? {} : readOfSettings(settings, now),
    readOfSystem(settings, isRoot),
  ]);
  return {
    platform: process.platform,
    architecture: process.arch,
    isRoot,
    user: userName(),
    program: process.execPath,
    config,
    driver: machineDriver(settings?.machines ?? {}),
    logWriter,
    ...ofSettings,
    ...ofSystem,
  };
}

/** Reads the facts that only a configuration leads to. */
async function readOfSettings(settings: AgentConfig, now: () => number) {
  const [disk, certificate, cluster] = await Promise.all([
    readFact(async () => await freeDisk(await nearestFolder(settings.dataDirectory))),
    readFact(async () => await readCertificate(settings)),
    readFact(async () => await askCluster(settings, now)),
  ]);
  return { disk, certificate, cluster };
}

async function readOfSystem(
  settings: AgentConfig | undefined,
  isRoot: boolean,
): Promise<Pick<ExaminedHost, 'mac' | 'linux'>> {
  if (process.platform === 'darwin') {
    return { mac: await readMac(installedPrograms(settings)), linux: undefined };
  }
  if (process.platform !== 'linux') {
    return { mac: undefined, linux: undefined };
  }
  const network = settings?.network.driver ?? (isRoot ? 'nat' : 'user');
  return { mac: undefined, linux: await readLinux(network === 'nat' ? 'nat' : 'user') };
}

function installedPrograms(settings: AgentConfig | undefined): InstalledPrograms {
  if (settings === undefined) {
    return { tart: TART, home: undefined, softnet: undefined };
  }
  const { tart } = settings.machines;
  const softnet = settings.network.driver === 'softnet' ? softnetBeside(tart) : undefined;
  return { tart, home: homeOf(settings.dataDirectory), softnet };
}

/** Returns the name of the user who runs this program. In a container, a user can have no name. */
function userName(): string {
  return undefinedIfSync(isOfSystem, () => userInfo().username) ?? `user ${process.getuid?.()}`;
}

function readConfiguration(file: string): Fact<AgentConfig> {
  try {
    return { known: loadConfig(file) };
  } catch (error) {
    // This user may not be allowed to read the data directory of the agent.
    if (error instanceof ConfigError || isOfSystem(error)) {
      return { unknown: messageOf(error) };
    }
    throw error;
  }
}

async function readLogWriter(): Promise<true> {
  await requireLogWriter();
  return true;
}

/** Returns the folder, or the nearest existing one above it. The agent makes its data directory when it starts for the first time. */
async function nearestFolder(folder: string): Promise<string> {
  const exists = await undefinedIf(
    isMissing,
    access(folder).then(() => true),
  );
  return exists === true ? folder : await nearestFolder(dirname(folder));
}

async function readCertificate({
  dataDirectory,
  nodeName,
}: AgentConfig): Promise<ClientCertificate | undefined> {
  const pair = readPair(identityFiles(dataDirectory).client);
  if (pair === undefined) {
    return await Promise.resolve(undefined);
  }
  const { validTo } = new X509Certificate(pair.certificate);
  return { validTo: new Date(validTo), isUsable: isUsable(pair, nodeName) };
}

/** Asks the API server for its version, once. */
async function askCluster(config: AgentConfig, now: () => number): Promise<ClusterAnswer> {
  const connection = await chooseConnection(config);
  const pool = createPool(connection, undefined);
  try {
    const token = await new TokenSource(connection).token();
    const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    // Behind a proxy for several clusters, the address of the server has a path.
    const root = new URL(connection.server).pathname.replace(/\/+$/, '');
    const before = now();
    const answer = await exchange(
      pool,
      { method: 'GET', path: `${root}/version`, headers },
      AbortSignal.timeout(ANSWER_MILLISECONDS),
    );
    const serverTime = Date.parse(answer.headers.date ?? '');
    return {
      server: connection.server,
      status: answer.statusCode,
      aheadMilliseconds: Number.isNaN(serverTime) ? undefined : (before + now()) / 2 - serverTime,
    };
  } finally {
    await pool.destroy();
  }
}

/** Returns the connection of the agent if the host has joined, and otherwise that with which it joins. */
async function chooseConnection(config: AgentConfig): Promise<Connection> {
  const { kubeconfig, bootstrapKubeconfig, dataDirectory, nodeName } = config;
  const files = identityFiles(dataDirectory);
  const hasJoined = kubeconfig === undefined && isUsable(readPair(files.client), nodeName);
  const path = hasJoined ? files.kubeconfig : (kubeconfig ?? bootstrapKubeconfig);
  return await loadConnection({ kubeconfigPath: path });
}
