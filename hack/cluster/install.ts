/** What Berth puts into a cluster: kinds, policies, namespaces, rights. */
import { execFile } from 'node:child_process';
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
}

/** Applies everything and resolves when the kinds can be used. Safe to repeat. */
export async function install(kubectl: Kubectl, options: InstallOptions): Promise<void> {
  const crds = await crdDirectory(options);
  const files = manifests(crds);
  await kubectl(['apply', '--server-side', '--force-conflicts', ...files]);
  await kubectl(['wait', '--for=condition=Established', `--timeout=${ESTABLISHED_SECONDS}s`, '-f', crds]);
}

/** Takes everything out again, and the simulated hosts. */
export async function uninstall(kubectl: Kubectl): Promise<void> {
  await kubectl(['delete', 'nodes', '--selector=berth.dev/simulated=true', '--ignore-not-found']);
  await kubectl(['delete', '--ignore-not-found', ...manifests(join(ROOT, 'crds')).toReversed()]);
}

/** Arguments for kubectl, in the order in which things need each other. */
function manifests(crds: string): string[] {
  const rbac = join(FILES, 'rbac');
  const harness = join(import.meta.dirname, 'harness.yaml');
  return [join(rbac, 'namespaces.yaml'), rbac, crds, join(FILES, 'policies'), harness].map(
    (path) => `--filename=${path}`,
  );
}

async function crdDirectory(options: InstallOptions): Promise<string> {
  if (options.displayDpiMaximum === COMMITTED_DPI_MAXIMUM) {
    return join(ROOT, 'crds');
  }
  const output = join(options.directory, 'crds');
  const args = [
    join(ROOT, 'hack', 'generate.ts'),
    '--display-dpi-maximum',
    String(options.displayDpiMaximum),
  ];
  await promisify(execFile)(process.execPath, [...args, '--output', output], { cwd: ROOT });
  return output;
}
