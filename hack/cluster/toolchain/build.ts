/** Building the programs from Go modules whose versions and checksums are pinned here (go.mod and go.sum of each group). */
import { spawn } from 'node:child_process';
import { cp, mkdir, rename } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { moduleDirectory, type Tool, type ToolGroup } from './tools.ts';

/** How often a running build says that it lives. */
const PROGRESS_INTERVAL_MILLISECONDS = 15_000;
/** A cold build of Kubernetes takes 6 min on 2 idle cores; several times that is a build that hangs. */
const BUILD_MILLISECONDS = 45 * 60_000;
/** Nobody debugs these programs, and to describe them to a debugger takes the compiler time. */
export const NO_DEBUG_INFORMATION = '-gcflags=all=-dwarf=false';
/** The compiler collects its garbage when what it holds has grown by so much; by default 100. It lives for seconds only. */
const COLLECTION_PERCENT = '400';
/** At the end of a package's path; the program is named by what stands before it. */
const MAJOR_VERSION = /\/v\d+$/;
/** What is kept of the compiler's words for the error message. */
const OUTPUT_TAIL_CHARACTERS = 2_000;

/** Takes a line that says what goes on. */
export type Progress = (line: string) => void;

/** Builds `tools` of the group into `directory`. @throws Error with the compiler's last words. */
export async function buildTools(
  group: ToolGroup,
  tools: readonly Tool[],
  directory: string,
  progress: Progress,
): Promise<void> {
  progress(`building ${tools.join(', ')} ${group.version} from Go modules (cold: ${group.coldBuild})`);
  // A copy, because the go command may want to write beside go.mod and the work tree stays untouched.
  const source = join(directory, 'source');
  await mkdir(source);
  for (const file of ['go.mod', 'go.sum']) {
    await cp(join(moduleDirectory(group), file), join(source, file));
  }
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
 * All at once: while one program is linked, which takes one processor, the next one's packages are compiled. Without
 * `-trimpath`: with it, the compiler's cache tells packages apart by the version that go.mod asks for, though a
 * replacement gives both groups the same files.
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

/** @throws Error with the last words of the go command. */
async function go(parameters: readonly string[], directory: string): Promise<void> {
  const child = spawn('go', parameters, {
    cwd: directory,
    env: { ...process.env, CGO_ENABLED: '0', GOGC: COLLECTION_PERCENT },
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: BUILD_MILLISECONDS,
  });
  let output = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    output = (output + text).slice(-OUTPUT_TAIL_CHARACTERS);
  });
  await new Promise<void>((resolve, reject) => {
    child.once('error', (error) => reject(new Error(`go: ${error.message}`, { cause: error })));
    child.once('close', (code, signal) => {
      if (code === 0) {
        resolve();
      } else {
        reject(new Error(`go build ended with ${signal ?? `code ${code}`}: ${output.trim()}`));
      }
    });
  });
}
