/** Reduces the size of VMs for which requests wait. */
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { keepFields } from '../../base/fields.ts';

/**
 * Returns the VM with the fields that a waiting request needs. A thousand VMs with all their labels would not fit into the memory of the
 * server.
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
