/** Building the programs from pinned Go modules, where only a Go module proxy can be reached. */
import { spawn } from 'node:child_process';
import { cp, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Progress } from './download.ts';
import { moduleDirectory, type Tool, type ToolGroup } from './tools.ts';

/** How often a running build says that it lives. */
const PROGRESS_INTERVAL_MILLISECONDS = 15_000;
/** A cold build of Kubernetes takes 6 min on 2 idle cores; several times that is a build that hangs. */
const BUILD_MILLISECONDS = 45 * 60_000;
/** What is kept of the compiler's words for the error message. */
const OUTPUT_TAIL_CHARACTERS = 2_000;

/** Builds `tools` of the group into `directory`. Throws with the compiler's last words. */
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
  for (const file of ['go.mod', 'go.sum']) await cp(join(moduleDirectory(group), file), join(source, file));
  const started = Date.now();
  const ticker = setInterval(
    () => progress(`still building ${group.name}: ${Math.round((Date.now() - started) / 1000)} s`),
    PROGRESS_INTERVAL_MILLISECONDS,
  );
  try {
    for (const tool of tools) await goBuild(group, tool, join(directory, tool), source);
  } finally {
    clearInterval(ticker);
  }
  progress(`built ${group.name} in ${Math.round((Date.now() - started) / 1000)} s`);
}

async function goBuild(group: ToolGroup, tool: Tool, target: string, source: string): Promise<void> {
  const args = ['build', '-trimpath', '-buildvcs=false', '-ldflags', group.ldflags, '-o', target];
  const child = spawn('go', [...args, group.packages[tool] ?? ''], {
    cwd: source,
    env: { ...process.env, CGO_ENABLED: '0' },
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
      if (code === 0) resolve();
      else reject(new Error(`go build of ${tool} ended with ${signal ?? `code ${code}`}: ${output.trim()}`));
    });
  });
}
