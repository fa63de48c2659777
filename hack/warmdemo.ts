/** Last part of the demo: saves its VM with its memory, starts four VMs from it at once, and leaves a pool of such VMs. */
import { IMAGES, VM_POOLS, VMS } from '../api/v1alpha1/resources.ts';
import type { Cluster } from './cluster/index.ts';
import { waitFor } from './wait.ts';

/** Image that the demo leaves, so that users can deploy from it. */
const IMAGE = 'hello-warm';
const COUNT = 4;
/** Pool that the demo leaves, so that users can claim VMs. */
const POOL = { name: 'fresh', replicas: 2 } as const;
/** Time limit of the save, and of the starts. Each takes a few seconds on an idle machine. */
const LIMIT = { deadlineMilliseconds: 120_000, intervalMilliseconds: 50 };

/** Returns a text with the times of the four starts. `bootSeconds` is the time of a VM that booted. The four VMs are deleted afterwards, and a pool takes their place. */
export async function showWarmStarts(
  cluster: Cluster,
  { namespace, vm, bootSeconds }: { namespace: string; vm: string; bootSeconds: number },
): Promise<string> {
  const client = cluster.client();
  await client.create(IMAGES, {
    metadata: { namespace, name: IMAGE },
    spec: { source: { fromVM: { name: vm, memory: true } } },
  });
  const isSaved = async () =>
    (await client.get(IMAGES, { namespace, name: IMAGE })).status?.memory !== undefined;
  await waitFor(`Image ${IMAGE} to be saved`, isSaved, LIMIT);
  const { cpu, memory } = (await client.get(VMS, { namespace, name: vm })).spec;
  const names = Array.from({ length: COUNT }, (_, index) => `warm-${index + 1}`);
  const begun = performance.now();
  const lines = await Promise.all(
    names.map(async (name) => {
      await client.create(VMS, { metadata: { namespace, name }, spec: { image: IMAGE, cpu, memory } });
      const start = await waitFor(
        `VM ${name} to be Ready`,
        async () => await startOf(cluster, namespace, name),
        LIMIT,
      );
      return `${name}   ${((performance.now() - begun) / 1000).toFixed(1)} s   ${start}`;
    }),
  );
  await Promise.all(names.map(async (name) => await client.delete(VMS, { namespace, name })));
  await client.create(VM_POOLS, {
    metadata: { namespace, name: POOL.name },
    spec: { replicas: POOL.replicas, template: { spec: { image: IMAGE, cpu, memory } } },
  });
  return `${vm} booted and was Ready after ${bootSeconds.toFixed(1)} s. Four VMs from its memory, all at once:\n\n${lines.join('\n')}\n\nThe pool ${POOL.name} keeps ${POOL.replicas} VMs of this image ready.\n`;
}

/** Returns how a VM that is Ready started; undefined while it is not Ready. */
async function startOf(cluster: Cluster, namespace: string, name: string): Promise<string | undefined> {
  const { status } = await cluster.client().get(VMS, { namespace, name });
  const of = (type: string) => status?.conditions?.find((condition) => condition.type === type);
  return of('Ready')?.status === 'True' ? of('WarmStart')?.reason : undefined;
}
