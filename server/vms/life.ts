/** Lives of VMs, which the programs that need the VMs prolong. */
import { prolongBody } from '../../api/http/vm.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import { moveEnd } from '../../actions/hold.ts';
import type { App } from '../http/app.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { checked } from '../callers/objects.ts';
import { objectParams } from '../http/namespaces.ts';
import { SAMPLE } from '../http/samples.ts';
import { MEMBERS, onObject } from '../own/rights.ts';

export function addLifeRoutes(app: App): void {
  app.post(
    '/api/v1/namespaces/:namespace/vms/:name/prolong',
    {
      config: { right: onObject({ verb: 'patch', resource: 'vms' }) },
      schema: {
        summary: 'Prolong the life of a VM',
        description:
          'The operator deletes a VM at its time `aliveUntil`. This request moves the time later. It is refused if the VM has no such time, or a later one.',
        roles: MEMBERS,
        sample: { aliveUntil: '2100-01-01T00:00:00Z' },
        tags: ['VMs'],
        params: objectParams('VM', SAMPLE.vm),
        body: prolongBody,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params, body }) => {
      await moveEnd(caller(), checked(VMS, params), body.aliveUntil);
      return success();
    },
  );
}
