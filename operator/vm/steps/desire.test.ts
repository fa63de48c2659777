import { expect, it } from 'vitest';
import type { Desired } from '../../../api/v1alpha1/machine.ts';
import { DESIRED_ANNOTATION } from '../../../api/v1alpha1/names.ts';
import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { desire } from './desire.ts';

const GIB = 1024 ** 3;
const FACTS: Facts = { firstRunningTime: undefined, attempt: 1, avoidedNodes: [], failure: undefined };

/** Returns the GiB that a host is told for the disk, if the VMConfig sets 8 GiB and the VM later sets `diskSize`. */
function toldAfter(diskSize: string): number | undefined {
  const before: Desired = {
    power: 'Running',
    restartPolicy: 'Never',
    cpu: 2,
    memoryBytes: GIB,
    diskSizeBytes: 8 * GIB,
  };
  const pod = {
    metadata: { annotations: { [DESIRED_ANNOTATION]: JSON.stringify(before) } },
    spec: { containers: [] },
  };
  const { writes } = desire({ vm: { spec: { diskSize } }, pod } as unknown as Observed, FACTS);
  const [write] = writes;
  const told = write?.kind === 'patchDesired' ? (JSON.parse(write.text) as Desired) : before;
  return told.diskSizeBytes && told.diskSizeBytes / GIB;
}

it('a VM makes the disk larger than its VMConfig does, but never smaller', () => {
  expect(toldAfter('9Gi')).toBe(9);
  expect(toldAfter('4Gi')).toBe(8);
});
