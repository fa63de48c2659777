/** Reduces the size of the VMs that waiting requests keep in memory. */
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { keepFields } from '../../base/fields.ts';

/**
 * Returns the VM with only the fields that a waiting request needs. A thousand VMs with all their labels would not fit into the server's
 * memory.
 */
export function trimmed({ apiVersion, kind, metadata, status }: VM): VM {
  const answerBy = metadata.annotations?.[ANSWER_BY_ANNOTATION];
  return {
    apiVersion,
    kind,
    metadata: {
      ...keepFields(metadata, ['name', 'namespace', 'uid', 'resourceVersion', 'deletionTimestamp']),
      ...(answerBy === undefined ? {} : { annotations: { [ANSWER_BY_ANNOTATION]: answerBy } }),
    },
    spec: {},
    ...(status === undefined ? {} : { status }),
  };
}
