/**
 * Finds the programs in KUBEBUILDER_ASSETS or in the user's cache, or builds them from Go modules. Nothing is downloaded ready-made. A
 * checksum from the same server as its file proves nothing. A go.sum file of this repository has checksums of every module of a build.
 */
import { constants } from 'node:fs';
import { access, mkdir, mkdtemp, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { messageOf } from '../../../base/errors.ts';
import { cacheDirectory } from '../../cache.ts';
import { buildTools, type Progress } from './build.ts';
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
  progress?: Progress;
  /** Function that builds the programs. Tests replace the go command with it. */
  build?: typeof buildTools;
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

async function resolveGroups(
  groups: readonly ToolGroup[],
  options: ToolchainOptions,
): Promise<Partial<Record<Tool, string>>> {
  const how: How = {
    environment: process.env,
    progress: toStandardError,
    build: buildTools,
    ...options,
  };
  const found: Partial<Record<Tool, string>> = {};
  for (const group of groups) {
    const tools = Object.keys(group.packages) as Tool[];
    Object.assign(found, await givenTools(tools, how.environment['KUBEBUILDER_ASSETS']));
    const missing = tools.filter((tool) => found[tool] === undefined);
    if (missing.length === 0) {
      continue;
    }
    const directory = join(cacheDirectory(how.environment), 'toolchain', await cacheKey(group));
    await fill(group, missing, directory, how);
    for (const tool of missing) {
      found[tool] = join(directory, tool);
    }
  }
  return found;
}

function toStandardError(line: string): void {
  process.stderr.write(`toolchain: ${line}\n`);
}

async function givenTools(
  tools: readonly Tool[],
  directory: string | undefined,
): Promise<Partial<Record<Tool, string>>> {
  if (!directory) {
    return {};
  }
  const present = await Promise.all(tools.map((tool) => isExecutable(join(directory, tool))));
  return Object.fromEntries(
    tools.filter((_, index) => present[index]).map((tool) => [tool, join(directory, tool)]),
  );
}

async function isExecutable(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}

/** Ensures that `directory` contains `tools`. Each file is moved there when complete, so that no partial file is ever visible. */
async function fill(group: ToolGroup, tools: readonly Tool[], directory: string, how: How): Promise<void> {
  if ((await missingIn(directory, tools)).length === 0) {
    return;
  }
  await mkdir(directory, { recursive: true });
  await withLock(`${directory}.lock`, how.progress, async () => {
    const missing = await missingIn(directory, tools);
    if (missing.length === 0) {
      return;
    }
    const work = await mkdtemp(`${directory}.new-`);
    try {
      await build(group, missing, work, how);
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

async function build(group: ToolGroup, tools: readonly Tool[], directory: string, how: How): Promise<void> {
  try {
    await how.build(group, tools, directory, how.progress);
  } catch (error) {
    throw new ToolchainError(nothingWorks(group, messageOf(error), how), { cause: error });
  }
}

function nothingWorks(group: ToolGroup, failure: string, how: How): string {
  return [
    `No way to get ${group.name} ${group.version} (${Object.keys(group.packages).join(', ')}). Tried:`,
    '  - KUBEBUILDER_ASSETS: not set, or without these programs',
    `  - cache: not in ${cacheDirectory(how.environment)}/toolchain`,
    `  - build: ${failure.replaceAll('\n', '\n    ')}`,
    'One of these helps:',
    '  - set KUBECONFIG and BERTH_CLUSTER=kubeconfig to use a cluster that you have',
    '  - set KUBEBUILDER_ASSETS to a folder with these programs',
    '  - install Go 1.26 or newer, and allow a Go module proxy (GOPROXY)',
  ].join('\n');
}
