import { expect, it } from 'vitest';
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import { taskJob } from './job.ts';

function resourcesOf(takesSlot: boolean) {
  const { spec } = taskJob({
    metadata: { name: 'cache-1', namespace: 'platform-ci' },
    workload: 'image',
    task: { apiVersion: TASK_API_VERSION, type: 'uncache', entry: 'fast', namespace: 'team' },
    containerImage: 'none',
    pullSecrets: [],
    placement: { dedicatedTo: 'platform-ci' },
    takesSlot,
    activeDeadlineSeconds: 60,
    ttlSecondsAfterFinished: 60,
    priorityClassName: 'none',
  });
  return spec.template.spec.containers[0]?.resources;
}

it('a task states small requests and limits, so that no quota for them and no LimitRange refuses its Pod', () => {
  const small = { cpu: '10m', memory: '16Mi' };
  const counted = { ...small, [SLOT_RESOURCE]: '1' };
  expect(resourcesOf(false)).toEqual({ requests: small, limits: small });
  expect(resourcesOf(true)).toEqual({ requests: counted, limits: counted });
});
