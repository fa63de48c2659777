/** Builds the programs from Go modules. go.mod and go.sum of each group pin versions and checksums. */
import { cp, readFile, rename } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { run } from '../../../base/exec.ts';
import { moduleDirectory, type Tool, type ToolGroup } from './tools.ts';

/** Interval between messages of a running build. */
const PROGRESS_INTERVAL_MILLISECONDS = 15_000;
/**
 * Time limit of a build. A build of Kubernetes without a cache takes 6 min on 2 idle cores. If it takes several times as long, it hangs.
 */
const BUILD_MILLISECONDS = 45 * 60_000;
/** Leaves out debug information, because nobody debugs these programs and the compiler needs time to write it. */
export const NO_DEBUG_INFORMATION = '-gcflags=all=-dwarf=false';
/** Growth of the compiler's heap in percent before a garbage collection. The default is 100, but the compiler runs only for seconds. */
const COLLECTION_PERCENT = '400';
/** Major version at the end of a package's path. The part before it is the program's name. */
const MAJOR_VERSION = /\/v\d+$/;

/** Reports progress. The argument is one line of text. */
export type ReportProgress = (line: string) => void;

/** A way to get programs that the machine lacks. */
export interface Source {
  readonly name: string;
  /** Checks within seconds whether the way is open. @throws Error with the reason why it is not. */
  check(group: ToolGroup, tools: readonly Tool[]): Promise<void>;
  /** Writes `tools` of the group into `directory`. @throws Error with the reason of the failure. */
  make(group: ToolGroup, tools: readonly Tool[], directory: string, progress: ReportProgress): Promise<void>;
}

/** Builds with the Go of this machine. */
export const BUILD: Source = { name: 'build', check: checkGo, make: buildTools };

/** Checks that this machine has Go of the version that the group needs. Newer versions of Go get that version by themselves. */
async function checkGo(group: ToolGroup): Promise<void> {
  const folder = moduleDirectory(group);
  const [, major, minor] = /^go (\d+)\.(\d+)/m.exec(await readFile(join(folder, 'go.mod'), 'utf8')) ?? [];
  const version = (await go(['env', 'GOVERSION'], folder)).trim();
  const [, ownMajor, ownMinor] = /^go(\d+)\.(\d+)/.exec(version) ?? [];
  if (ownMajor !== major || Number(ownMinor) < Number(minor)) {
    throw new Error(`the installed ${version || 'go'} is older than go${major}.${minor}`);
  }
}

async function buildTools(
  group: ToolGroup,
  tools: readonly Tool[],
  directory: string,
  progress: ReportProgress,
): Promise<void> {
  progress(`building ${tools.join(', ')} ${group.version} from Go modules (cold: ${group.coldBuild})`);
  // A copy is used, because the go command can write beside go.mod and the work tree must stay unchanged.
  const source = join(directory, 'source');
  await cp(moduleDirectory(group), source, { recursive: true });
  const started = Date.now();
  const ticker = setInterval(
    () => progress(`still building ${group.name}: ${Math.round((Date.now() - started) / 1000)} s`),
    PROGRESS_INTERVAL_MILLISECONDS,
  );
  try {
    await goBuild(group, tools, directory, source);
  } finally {
    clearInterval(ticker);
  }
  progress(`built ${group.name} in ${Math.round((Date.now() - started) / 1000)} s`);
}

/**
 * Builds all programs with one command. While one program is linked, which uses one processor, packages of the next are compiled. The build
 * does not use `-trimpath`. With that flag, the compiler's cache would separate packages by the version in go.mod. Both groups could then
 * not share packages, although a replacement gives them the same files.
 */
async function goBuild(
  group: ToolGroup,
  tools: readonly Tool[],
  directory: string,
  source: string,
): Promise<void> {
  const packageOf = (tool: Tool): string => group.packages[tool] ?? '';
  const flags = ['-buildvcs=false', NO_DEBUG_INFORMATION, '-ldflags', group.ldflags];
  await go(['build', ...flags, '-o', `${directory}/`, ...tools.map(packageOf)], source);
  for (const tool of tools) {
    const name = basename(packageOf(tool).replace(MAJOR_VERSION, ''));
    await rename(join(directory, name), join(directory, tool));
  }
}

/** Runs the go command and returns its output. @throws ProgramError with the end of its error output. */
async function go(parameters: readonly string[], folder: string): Promise<string> {
  return await run('go', parameters, {
    name: `go ${parameters[0]}`,
    folder,
    environment: { ...process.env, CGO_ENABLED: '0', GOGC: COLLECTION_PERCENT },
    timeoutMilliseconds: BUILD_MILLISECONDS,
  });
}
