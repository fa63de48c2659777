/** When removals are looked at. Of VMs' Pods no change is watched: they are seen at the next look. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { Controller } from '../../kube/controller.ts';
import { REMOVALS_KEY } from './controller.ts';
import type { RemovalSources } from './observe.ts';
import { isRemoval } from '../image/removalrecord.ts';
import { podJob } from '../image/observe.ts';

export function enqueueRemovals(
  controller: Controller,
  { images, isos, jobs, taskPods }: RemovalSources,
): void {
  const look = (): void => controller.enqueue(REMOVALS_KEY);
  jobs.cache.onChange(({ object }) => {
    if (isRemoval(object)) {
      look();
    }
  });
  taskPods.cache.onChange(({ object }) => {
    const job = podJob(object).map((key) => jobs.cache.get(key))[0];
    if (job !== undefined && isRemoval(job)) {
      look();
    }
  });
  // What is named for a moment only is needed in that moment all the same.
  for (const { cache } of [images, isos]) {
    cache.onChange(({ type, object, previous }) => {
      const isSame = type === 'updated' && sameContent(object, previous);
      if (!isSame && jobs.cache.list().some(isRemoval)) {
        look();
      }
    });
  }
}

function sameContent(a: Image | ISO, b: Image | ISO | undefined): boolean {
  return JSON.stringify(a.status?.content) === JSON.stringify(b?.status?.content);
}
