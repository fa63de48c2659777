/** The control plane of k3s in a container. Its agents' logs are reachable only where containers reach the host. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../../support/errors.ts';

/** Of the same minor release as the plain processes. */
const IMAGE = 'rancher/k3s:v1.36.3-k3s1';
/** 250 MB over a slow line. */
const PULL_MILLISECONDS = 600_000;

/** Berth's own hosts are nodes; k3s' agent and add-ons would only be in the way. */
const COMMAND = [
  'server',
  '--disable-agent',
  '--disable=traefik,servicelb,metrics-server,local-storage,coredns',
  '--kube-apiserver-arg=enable-bootstrap-token-auth=true',
  '--kube-apiserver-arg=kubelet-preferred-address-types=InternalIP',
  '--kube-controller-manager-arg=controllers=*,tokencleaner,bootstrapsigner',
  '--kube-controller-manager-arg=kube-api-qps=2000',
  '--kube-controller-manager-arg=kube-api-burst=2000',
  '--kube-scheduler-arg=kube-api-qps=2000',
  '--kube-scheduler-arg=kube-api-burst=2000',
];

/** Undefined when a container of k3s can run here, else why not. Pulls the image when it isn't there. */
export async function whyNotDocker(): Promise<string | undefined> {
  try {
    const { getContainerRuntimeClient, ImageName } = await import('testcontainers');
    const runtime = await getContainerRuntimeClient();
    const image = ImageName.fromString(IMAGE);
    if (await runtime.image.exists(image)) return undefined;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`pulling ${IMAGE} takes too long`)), PULL_MILLISECONDS);
    });
    await Promise.race([runtime.image.pull(image), late]).finally(() => clearTimeout(timer));
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}

/** Starts it, writes `DIRECTORY/kubeconfig`, resolves with the container's id. */
export async function startContainer(directory: string, lasting: boolean): Promise<string> {
  // Testcontainers' helper removes containers when this process ends; a lasting cluster must not be.
  if (lasting) process.env['TESTCONTAINERS_RYUK_DISABLED'] = 'true';
  const { K3sContainer } = await import('@testcontainers/k3s');
  const container = await new K3sContainer(IMAGE).withCommand(COMMAND).start();
  writeFileSync(join(directory, 'kubeconfig'), container.getKubeConfig(), { mode: 0o600 });
  return container.getId();
}

/** Removes the container with its volumes. */
export async function removeContainer(id: string): Promise<void> {
  const { getContainerRuntimeClient } = await import('testcontainers');
  const runtime = await getContainerRuntimeClient();
  await runtime.container.remove(runtime.container.getById(id), { removeVolumes: true });
}
