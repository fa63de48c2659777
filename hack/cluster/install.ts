/** Installs Berth's kinds, policies, namespaces and rights in a cluster. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Kubectl } from './kubectl.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const FILES = join(ROOT, 'charts', 'berth', 'files');
const MUTATING_POLICIES = join(FILES, 'mutatingpolicies');
/** Time limit until the API server serves new kinds. It takes a second, and several on a busy machine. */
const ESTABLISHED_SECONDS = 60;
/** Highest DPI that the committed CRDs allow. CRDs for the other maximum are generated. */
const COMMITTED_DPI_MAXIMUM = 240;

export interface InstallOptions {
  directory: string;
  displayDpiMaximum: 240 | 320;
}

/** Applies all objects and resolves when the kinds can be used. It can be repeated. */
export async function install(kubectl: Kubectl, options: InstallOptions): Promise<void> {
  const crds = await crdDirectory(options);
  const files = manifests(crds);
  await kubectl(['apply', '--server-side', '--force-conflicts', ...files]);
  if (await servesMutatingPolicies(kubectl)) {
    await kubectl(['apply', '--server-side', '--force-conflicts', `--filename=${MUTATING_POLICIES}`]);
  }
  await kubectl(['wait', '--for=condition=Established', `--timeout=${ESTABLISHED_SECONDS}s`, '-f', crds]);
}

/** Removes all objects again, and the simulated hosts. */
export async function uninstall(kubectl: Kubectl): Promise<void> {
  await kubectl(['delete', 'nodes', '--selector=berth.dev/simulated=true', '--ignore-not-found']);
  if (await servesMutatingPolicies(kubectl)) {
    await kubectl(['delete', '--ignore-not-found', `--filename=${MUTATING_POLICIES}`]);
  }
  await kubectl(['delete', '--ignore-not-found', ...manifests(join(ROOT, 'crds')).toReversed()]);
}

/** Returns whether the API server has the version of MutatingAdmissionPolicies that Kubernetes has from 1.36 on. */
async function servesMutatingPolicies(kubectl: Kubectl): Promise<boolean> {
  const { stdout } = await kubectl(['get', '--raw', '/apis/admissionregistration.k8s.io/v1']);
  return stdout.includes('"mutatingadmissionpolicies"');
}

/** Returns arguments for kubectl. Objects come before the objects that need them. */
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
