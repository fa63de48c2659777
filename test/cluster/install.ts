/** What Berth puts into a cluster: kinds, policies, namespaces, rights. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Kubectl } from './kubectl.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const FILES = join(ROOT, 'charts', 'berth', 'files');
/** The API server serves a new kind within a second; a busy machine takes several. */
const ESTABLISHED_SECONDS = 60;
/** Highest DPI that the committed CRDs allow; the other one is generated. */
const COMMITTED_DPI_MAXIMUM = 240;

export interface InstallOptions {
  directory: string;
  displayDpiMaximum: 240 | 320;
  /** Also the rights of the harness's own components. */
  harness: boolean;
}

/** Applies everything and resolves when the kinds can be used. Safe to repeat. */
export async function install(kubectl: Kubectl, options: InstallOptions): Promise<void> {
  const crds = await crdDirectory(options);
  const folders = [
    join(FILES, 'rbac', 'namespaces.yaml'),
    join(FILES, 'rbac'),
    crds,
    join(FILES, 'policies'),
  ];
  const paths = options.harness ? [...folders, join(import.meta.dirname, 'harness.yaml')] : folders;
  const files = paths.filter((path) => existsSync(path)).flatMap((path) => ['-f', path]);
  await kubectl(['apply', '--server-side', '--force-conflicts', ...files]);
  await kubectl(['wait', '--for=condition=Established', `--timeout=${ESTABLISHED_SECONDS}s`, '-f', crds]);
}

async function crdDirectory(options: InstallOptions): Promise<string> {
  if (options.displayDpiMaximum === COMMITTED_DPI_MAXIMUM) return join(ROOT, 'crds');
  const output = join(options.directory, 'crds');
  const args = [
    join(ROOT, 'hack', 'generate.ts'),
    '--display-dpi-maximum',
    String(options.displayDpiMaximum),
  ];
  await promisify(execFile)(process.execPath, [...args, '--output', output], { cwd: ROOT });
  return output;
}
