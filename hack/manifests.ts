/**
 * Renders the chart into one file for `kubectl apply --server-side`: `dist/install.yaml`.
 *
 *   manifests.ts [--output FILE] [HELM OPTION…]      e.g. --set displayDPIMaximum=320
 *
 * The file contains no hooks, because Helm reads no cluster. Before you delete the applied objects, delete the VMs
 * (docs/operate/uninstall.md).
 */
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ProgramError, run } from '../base/exec.ts';
import { resolveChartTools } from './cluster/toolchain/toolchain.ts';
import { runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
/** Limit of Helm's output. All kinds and policies together have some 150 KB. */
const OUTPUT_BYTES = 16 * 1024 * 1024;
/** Time limit for Helm. It takes a second, and several on a busy machine. */
const RENDER_MILLISECONDS = 60_000;

async function main(args: readonly string[]): Promise<void> {
  const at = args.indexOf('--output');
  const output = at < 0 ? join(ROOT, 'dist', 'install.yaml') : args[at + 1];
  if (output === undefined) {
    throw new Error('--output needs the name of a file');
  }
  const rest = at < 0 ? args : args.toSpliced(at, 2);
  const { helm } = await resolveChartTools();
  const fixed = ['--namespace', 'berth-system', '--set', 'namespaces.createSystem=true'];
  const template = ['template', 'berth', join(ROOT, 'charts', 'berth'), ...fixed, ...rest];
  const stdout = await render(helm, template);
  await mkdir(dirname(output), { recursive: true });
  await writeFile(output, stdout);
  process.stdout.write(`${output}\n`);
}

/** Renders the chart. @throws Error with Helm's own message when Helm refuses the values. */
async function render(helm: string, template: readonly string[]): Promise<string> {
  try {
    return await run(helm, template, {
      name: 'helm',
      timeoutMilliseconds: RENDER_MILLISECONDS,
      outputLimitBytes: OUTPUT_BYTES,
    });
  } catch (error) {
    throw error instanceof ProgramError && error.exitCode !== undefined
      ? new Error(error.lastOutput, { cause: error })
      : error;
  }
}

await runCommand(async () => await main(process.argv.slice(2)));
