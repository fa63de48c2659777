/**
 * Finds the programs in KUBEBUILDER_ASSETS or in the user's cache. Otherwise they are downloaded where their projects publish them, and at
 * last built from Go modules. A go.sum file of this repository has checksums of every module of a build. A download is compared with the
 * checksum beside it. A checksum from the same site shows a damaged file, and no more. Users who trust no site set KUBEBUILDER_ASSETS.
 */
import { constants, createWriteStream } from 'node:fs';
import { access, mkdir, mkdtemp, rename, rm, chmod } from 'node:fs/promises';
import { join, basename } from 'node:path';
import { messageOf } from '../../../base/errors.ts';
import { cacheDirectory } from '../../cache.ts';
import { BUILD, type ReportProgress, type Source } from './build.ts';
import { withLock } from './lock.ts';
import {
  CHART_TOOL_GROUPS,
  type ChartTool,
  CI_TOOL_GROUPS,
  type CITool,
  type ClusterTool,
  cacheKey,
  METRICS_TOOL_GROUPS,
  type MetricsTool,
  NODE_TOOL_GROUPS,
  type NodeTool,
  SIMULATION_TOOL_GROUPS,
  type SimulationTool,
  TOOL_GROUPS,
  type Tool,
  type ToolGroup,
  type Publication,
} from './tools.ts';
import { createHash } from 'node:crypto';
import { pipeline as pipelineOf, Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { EnvHttpProxyAgent, fetch, type Response } from 'undici';
import { run } from '../../../base/exec.ts';

export type Tools = Readonly<Record<ClusterTool, string>>;
type SimulationTools = Readonly<Record<SimulationTool, string>>;
type ChartTools = Readonly<Record<ChartTool, string>>;
export type NodeTools = Readonly<Record<NodeTool, string>>;
type MetricsTools = Readonly<Record<MetricsTool, string>>;
type CITools = Readonly<Record<CITool, string>>;

/** Error when there is no source of the programs. The message contains the sources that were tried and the packages to install. */
class ToolchainError extends Error {
  override readonly name = 'ToolchainError';
}

interface ToolchainOptions {
  environment?: Readonly<Record<string, string | undefined>>;
  progress?: ReportProgress;
  /** Ways to get programs that are neither given nor in the cache, in the order in which they are tried. */
  sources?: readonly Source[];
}

type How = Required<ToolchainOptions>;

/** Returns paths of a cluster's programs. The first call on a machine builds them, which takes minutes. */
export async function resolveTools(options: ToolchainOptions = {}): Promise<Tools> {
  return (await resolveGroups(TOOL_GROUPS, options)) as Tools;
}

/** Returns the path of the program that simulates hosts. The first call on a machine builds it. */
export async function resolveSimulationTools(options: ToolchainOptions = {}): Promise<SimulationTools> {
  return (await resolveGroups(SIMULATION_TOOL_GROUPS, options)) as SimulationTools;
}

/** Returns paths of the programs that render and check the chart. The first call on a machine builds them. */
export async function resolveChartTools(options: ToolchainOptions = {}): Promise<ChartTools> {
  return (await resolveGroups(CHART_TOOL_GROUPS, options)) as ChartTools;
}

/** Returns absolute paths of the programs that a machine needs to be a node. */
export async function resolveNodeTools(options: ToolchainOptions = {}): Promise<NodeTools> {
  return (await resolveGroups(NODE_TOOL_GROUPS, options)) as NodeTools;
}

/** Returns the path of metrics-server. The first call on a machine builds it. */
export async function resolveMetricsTools(options: ToolchainOptions = {}): Promise<MetricsTools> {
  return (await resolveGroups(METRICS_TOOL_GROUPS, options)) as MetricsTools;
}

/** Returns the paths of programs of CI systems. The first call on a machine builds them. */
export async function resolveCITools(options: ToolchainOptions = {}): Promise<CITools> {
  return (await resolveGroups(CI_TOOL_GROUPS, options)) as CITools;
}

/**
 * Checks, before anything takes minutes, that there is a way to get a cluster's programs.
 * @throws ToolchainError that says what was tried and what helps.
 */
export async function checkTools(options: ToolchainOptions = {}): Promise<void> {
  const how = complete(options);
  for (const group of TOOL_GROUPS) {
    const { missing } = await locate(group, how);
    if (missing.length > 0) {
      await useFirst(group, how, async (source) => await source.check(group, missing));
    }
  }
}

async function resolveGroups(
  groups: readonly ToolGroup[],
  options: ToolchainOptions,
): Promise<Partial<Record<Tool, string>>> {
  const how = complete(options);
  const found: Partial<Record<Tool, string>> = {};
  for (const group of groups) {
    const { paths, directory, missing } = await locate(group, how);
    if (missing.length > 0) {
      await fill(group, missing, directory, how);
    }
    Object.assign(found, paths);
  }
  return found;
}

function complete(options: ToolchainOptions): How {
  return { environment: process.env, progress: toStandardError, sources: [DOWNLOAD, BUILD], ...options };
}

/** Where the programs of a group are or will be, and those of them that the group's folder in the cache lacks. */
interface Location {
  readonly paths: Partial<Record<Tool, string>>;
  readonly directory: string;
  readonly missing: readonly Tool[];
}

async function locate(group: ToolGroup, { environment }: How): Promise<Location> {
  const tools = Object.keys(group.packages) as Tool[];
  const directory = join(cacheDirectory(environment), 'toolchain', await cacheKey(group));
  const given = environment['KUBEBUILDER_ASSETS'];
  const notGiven = given ? await missingIn(given, tools) : tools;
  const pathOf = (tool: Tool): string => join(notGiven.includes(tool) ? directory : (given ?? ''), tool);
  const paths = Object.fromEntries(tools.map((tool) => [tool, pathOf(tool)]));
  return { paths, directory, missing: await missingIn(directory, notGiven) };
}

function toStandardError(line: string): void {
  process.stderr.write(`toolchain: ${line}\n`);
}

async function isExecutable(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}

/** Ensures that `directory` contains `tools`. Each file is moved there when complete, so that no partial file is ever visible. */
async function fill(group: ToolGroup, tools: readonly Tool[], directory: string, how: How): Promise<void> {
  await mkdir(directory, { recursive: true });
  await withLock(`${directory}.lock`, how.progress, async () => {
    const missing = await missingIn(directory, tools);
    if (missing.length === 0) {
      return;
    }
    const work = await mkdtemp(`${directory}.new-`);
    try {
      await useFirst(group, how, async (source) => await source.make(group, missing, work, how.progress));
      for (const tool of missing) {
        await rename(join(work, tool), join(directory, tool));
      }
    } finally {
      await rm(work, { recursive: true, force: true });
    }
  });
}

async function missingIn(directory: string, tools: readonly Tool[]): Promise<Tool[]> {
  const present = await Promise.all(tools.map((tool) => isExecutable(join(directory, tool))));
  return tools.filter((_, index) => !present[index]);
}

/** Does something with the first source with which it succeeds. @throws ToolchainError when it fails with each of them. */
async function useFirst(group: ToolGroup, how: How, work: (source: Source) => Promise<void>): Promise<void> {
  const failures: string[] = [];
  for (const source of how.sources) {
    try {
      await work(source);
      return;
    } catch (error) {
      failures.push(`${source.name}: ${messageOf(error)}`);
    }
  }
  throw new ToolchainError(nothingWorks(group, failures, how));
}

function nothingWorks(group: ToolGroup, failures: readonly string[], how: How): string {
  return [
    `No way to get ${group.name} ${group.version} (${Object.keys(group.packages).join(', ')}). Tried:`,
    '  - KUBEBUILDER_ASSETS: not set, or without these programs',
    `  - cache: not in ${cacheDirectory(how.environment)}/toolchain`,
    ...failures.map((failure) => `  - ${failure.replaceAll('\n', '\n    ')}`),
    'One of these helps:',
    '  - set KUBEBUILDER_ASSETS to a folder with these programs',
    '  - allow the addresses of the download, if need be by HTTPS_PROXY',
    '  - install Go 1.26 or newer, and allow a Go module proxy (GOPROXY)',
  ].join('\n');
}

/** Time limit of a list of checksums. A site that a firewall hides must not delay the next way to get the programs. */
const CHECKSUM_MILLISECONDS = 5_000;
/** Time limit of a program. The largest has 90 MB, which a slow connection needs some minutes for. */
const PROGRAM_MILLISECONDS = 15 * 60_000;
/** Limit of a list of checksums. That of etcd has 3 KB. */
const CHECKSUM_BYTES = 64 * 1024;
/** Limit of a program, several times the largest. */
const PROGRAM_BYTES = 500 * 1024 * 1024;
/** Time limit of tar for an archive of some 20 MB on a busy machine. */
const UNPACK_MILLISECONDS = 60_000;
/** Names of the processors in the addresses. */
const ARCHITECTURES: Readonly<Partial<Record<NodeJS.Architecture, string>>> = {
  x64: 'amd64',
  arm64: 'arm64',
};

/** A published file, and the SHA-256 that its project names. */
interface PublishedFile {
  readonly url: string;
  readonly sha256: string;
}

/** Downloads what `Publication` names. It uses the proxy of the environment. */
export const DOWNLOAD: Source = {
  name: 'download',
  async check(group, tools) {
    await Promise.all(tools.map(async (tool) => await findFile(group, tool)));
  },
  async make(group, tools, directory, progress) {
    const files = await Promise.all(tools.map(async (tool) => await findFile(group, tool)));
    progress(`downloading ${tools.join(', ')} ${group.version} from ${new URL(files[0]?.url ?? '').host}`);
    // All downloads have ended before a failure is reported, because the next way writes into the same folder.
    const results = await Promise.allSettled(
      files.map(async (file, index) => await getTool(file, tools[index], directory)),
    );
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) {
      throw failed.reason;
    }
  },
};

/** Reads the checksum of a tool. @throws Error when the tool is not published for this machine, or the site does not answer in time. */
async function findFile(group: ToolGroup, tool: Tool): Promise<PublishedFile> {
  const { url, checksums } = publicationOf(group, tool);
  const chunks: Buffer[] = [];
  for await (const chunk of await open(checksums, CHECKSUM_MILLISECONDS, CHECKSUM_BYTES)) {
    chunks.push(chunk as Buffer);
  }
  const lines = Buffer.concat(chunks).toString('utf8').split('\n');
  const message = lines.map((line) => line.trim().split(/\s+/));
  // The list of a single file has no name.
  const line = message.find(([, name]) => name === undefined || name === basename(url));
  const [sha256 = ''] = line ?? [];
  if (!/^[0-9a-f]{64}$/.test(sha256)) {
    throw new Error(`${checksums} has no SHA-256 of ${basename(url)}`);
  }
  return { url, sha256 };
}

function publicationOf(group: ToolGroup, tool: Tool): Publication {
  const architecture = ARCHITECTURES[process.arch];
  if (group.publication === undefined || architecture === undefined || process.platform !== 'linux') {
    throw new Error(`no download of ${tool} for ${process.platform} on ${process.arch} is known`);
  }
  return group.publication(tool, architecture);
}

async function getTool(
  { url, sha256 }: PublishedFile,
  tool: Tool | undefined,
  directory: string,
): Promise<void> {
  const path = join(directory, tool ?? '');
  const isArchive = url.endsWith('.tar.gz');
  const file = isArchive ? `${path}.tar.gz` : path;
  const hash = createHash('sha256');
  const hashing = new Transform({
    transform(chunk: Buffer, _encoding, next) {
      hash.update(chunk);
      next(null, chunk);
    },
  });
  const body = await open(url, PROGRAM_MILLISECONDS, PROGRAM_BYTES);
  await pipeline(body, hashing, createWriteStream(file));
  if (hash.digest('hex') !== sha256) {
    throw new Error(`${url} has not the SHA-256 that its project names, ${sha256}`);
  }
  if (isArchive) {
    const member = `${basename(url, '.tar.gz')}/${tool}`;
    await run('tar', ['-xzf', file, '-C', directory, '--no-same-owner', '--strip-components=1', member], {
      timeoutMilliseconds: UNPACK_MILLISECONDS,
    });
    await rm(file);
  }
  await chmod(path, 0o755);
}

/** Returns the content at an address. @throws Error when the site does not answer, or the content is late or has more than `limit` bytes. */
async function open(url: string, milliseconds: number, limit: number): Promise<Readable> {
  let response: Response;
  try {
    const signal = AbortSignal.timeout(milliseconds);
    response = await fetch(url, { signal, dispatcher: new EnvHttpProxyAgent() });
  } catch (error) {
    throw new Error(`${url}: ${reasonOf(error)}`, { cause: error });
  }
  if (!response.ok || response.body === null) {
    await response.body?.cancel();
    throw new Error(`${url}: HTTP ${response.status}`);
  }
  let bytes = 0;
  const counting = new Transform({
    transform(chunk: Buffer, _encoding, next) {
      bytes += chunk.length;
      next(bytes > limit ? new Error(`${url} has more than ${limit} bytes`) : null, chunk);
    },
  });
  // If one of both streams fails or is destroyed, the other one is destroyed, too. The reader gets the error from the returned stream.
  return pipelineOf(Readable.fromWeb(response.body), counting, () => undefined);
}

/** Returns the message of the cause, because fetch says only that it failed. */
function reasonOf(error: unknown): string {
  return messageOf(error instanceof Error && error.cause !== undefined ? error.cause : error);
}
