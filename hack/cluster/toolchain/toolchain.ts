/**
 * Finds the programs in KUBEBUILDER_ASSETS or in the user's cache. Otherwise they are downloaded where their projects publish them, and at
 * last built from Go modules. A go.sum file of this repository has checksums of every module of a build.
 */
import { constants } from 'node:fs';
import { access, mkdir, mkdtemp, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { messageOf } from '../../../base/errors.ts';
import { cacheDirectory } from '../../cache.ts';
import { BUILD, type ReportProgress, type Source } from './build.ts';
import { DOWNLOAD } from './download.ts';
import { withLock } from './lock.ts';
import {
  CHART_TOOL_GROUPS,
  type ChartTool,
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
} from './tools.ts';

export type Tools = Readonly<Record<ClusterTool, string>>;
export type SimulationTools = Readonly<Record<SimulationTool, string>>;
export type ChartTools = Readonly<Record<ChartTool, string>>;
export type NodeTools = Readonly<Record<NodeTool, string>>;
export type MetricsTools = Readonly<Record<MetricsTool, string>>;

/** Error when there is no source of the programs. The message contains the sources that were tried and the packages to install. */
class ToolchainError extends Error {
  override readonly name = 'ToolchainError';
}

export interface ToolchainOptions {
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
