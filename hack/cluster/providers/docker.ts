/**
 * Runs the control plane's own programs in containers, with an image that is built here. No Kubernetes distribution is used, and nothing is
 * pulled. A container shares this machine's network, the cluster's folder and the caller's user. It is removed when its process ends.
 * Therefore its process is recorded like every other process.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { GenericContainer, getContainerRuntimeClient, ImageName } from 'testcontainers';
import { codeOf, isMissing, messageOf } from '../../../base/errors.ts';
import { type ProcessPlan, type ProcessRecord, recordProcess } from '../processes.ts';
import type { Tools } from '../toolchain/toolchain.ts';

const PROGRAMS = ['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler'] as const;
const REPOSITORY = 'localhost/berth-control-plane';
/** Static build from Debian. Its shell writes the log files, because the programs write none. */
const BUSYBOX = '/bin/busybox';
const DOCKERFILE = `FROM scratch
COPY busybox ${PROGRAMS.join(' ')} /
`;
/** Command that runs a program and appends its output to a log. The path of the log, the program and its arguments follow it. */
const ENTRY = ['/busybox', 'sh', '-c', 'exec "$@" >>"$0" 2>&1'];
const LOG_TAIL_CHARACTERS = 1_000;

/** Labels of containers: the name of the cluster's folder, and the program. */
export const CLUSTER_LABEL = 'dev.berth.cluster';
export const PROGRAM_LABEL = 'dev.berth.program';

type Runtime = Awaited<ReturnType<typeof getContainerRuntimeClient>>;

/** Returns the daemon that `DOCKER_HOST` names, or the machine's own daemon. @throws Error when no daemon answers. */
export async function dockerRuntime(): Promise<Runtime> {
  // The helper of Testcontainers that cleans up after killed runs would have to be pulled. The next start of a cluster cleans up instead.
  process.env['TESTCONTAINERS_RYUK_DISABLED'] = 'true';
  // Ports of containers are on loopback, because containers share our network. If this program runs in a container itself, Testcontainers
  // would choose a bridge's gateway.
  process.env['TESTCONTAINERS_HOST_OVERRIDE'] ??= '127.0.0.1';
  // If a daemon is named but missing, Testcontainers would use the machine's own daemon instead.
  const [, socket] = /^unix:\/\/(.*)$/.exec(process.env['DOCKER_HOST'] ?? '') ?? [];
  if (socket !== undefined && !existsSync(socket)) {
    throw new Error(`DOCKER_HOST: ${socket} is not there`);
  }
  return await getContainerRuntimeClient();
}

/** Returns the reference of the image with these programs. Builds the image when the daemon lacks it. */
export async function controlPlaneImage(tools: Tools): Promise<string> {
  if (process.platform !== 'linux') {
    throw new Error('containers with the network of this machine need Linux');
  }
  const runtime = await dockerRuntime().catch((error: unknown) => {
    throw new Error(`no Docker daemon answers: ${messageOf(error)}`, { cause: error });
  });
  const files = [BUSYBOX, ...PROGRAMS.map((name) => tools[name])];
  const reference = `${REPOSITORY}:${await fingerprint(files)}`;
  if (!(await runtime.image.exists(ImageName.fromString(reference)))) {
    await build(reference, files);
  }
  return reference;
}

/** Hashes names, sizes and times of the files to copy, without reading their content. */
async function fingerprint(files: readonly string[]): Promise<string> {
  const hash = createHash('sha256').update(DOCKERFILE);
  for (const file of files) {
    const { size, mtimeMs } = await stat(file);
    hash.update(`${file} ${size} ${mtimeMs}\n`);
  }
  return hash.digest('hex').slice(0, 12);
}

async function build(reference: string, files: readonly string[]): Promise<void> {
  const context = await mkdtemp(join(tmpdir(), 'berth-control-plane-'));
  try {
    await writeFile(join(context, 'Dockerfile'), DOCKERFILE);
    for (const file of files) {
      await copyFile(file, join(context, basename(file)));
    }
    await GenericContainer.fromDockerfile(context).build(reference, { deleteOnExit: false });
  } finally {
    await rm(context, { recursive: true, force: true });
  }
}

/** Container that the container daemon removes when the container's process has ended, for any reason. */
class ProgramContainer extends GenericContainer {
  protected override async beforeContainerCreated(): Promise<void> {
    this.hostConfig.AutoRemove = true;
  }
}

/** Starts a program of the image. The container has the folder at the same path, and its log is in the folder, as for a plain process. */
export async function startContainer(
  directory: string,
  plan: ProcessPlan & { image: string },
): Promise<ProcessRecord> {
  await dockerRuntime();
  const log = join(directory, `${plan.name}.log`);
  const container = new ProgramContainer(plan.image)
    .withEntrypoint([...ENTRY, log, plan.file])
    .withCommand([...plan.arguments])
    .withEnvironment({ ...plan.environment })
    .withUser(`${process.getuid?.()}:${process.getgid?.()}`)
    .withNetworkMode('host')
    .withBindMounts([{ source: directory, target: directory }])
    .withLabels({ [CLUSTER_LABEL]: basename(directory), [PROGRAM_LABEL]: plan.name });
  try {
    const started = await container.start();
    return await recordProcess(directory, plan, await processOf(started.getId()));
  } catch (error) {
    const message = await readFile(log, 'utf8').catch(() => 'it wrote no log');
    const reason = `${messageOf(error)}: ${message.slice(-LOG_TAIL_CHARACTERS)}`;
    throw new Error(`${plan.name} did not start in a container: ${reason}`, { cause: error });
  }
}

/** Returns the container's process id on this machine. A daemon can count in its own process namespace. */
async function processOf(container: string): Promise<number> {
  for (const entry of await readdir('/proc')) {
    if (/^\d+$/.test(entry) && (await groupsOf(entry)).includes(container)) {
      return Number(entry);
    }
  }
  throw new Error('it has ended, or the daemon is on another machine');
}

async function groupsOf(pid: string): Promise<string> {
  try {
    return await readFile(`/proc/${pid}/cgroup`, 'utf8');
  } catch (error) {
    if (isMissing(error) || codeOf(error) === 'ESRCH') {
      return '';
    }
    throw error;
  }
}
