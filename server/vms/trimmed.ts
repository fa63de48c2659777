/** Makes the VMs small for which requests wait. */
import { ANSWER_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';

/** Returns the VM with the fields that a waiting request needs. A thousand VMs with all their labels would not fit into the memory. */
export function trimmed({ apiVersion, kind, metadata, status }: VM): VM {
  const { name, namespace, uid, resourceVersion, deletionTimestamp, annotations } = metadata;
  const answerBy = annotations?.[ANSWER_BY_ANNOTATION];
  return {
    apiVersion,
    kind,
    metadata: {
      name,
      ...(namespace === undefined ? {} : { namespace }),
      ...(uid === undefined ? {} : { uid }),
      ...(resourceVersion === undefined ? {} : { resourceVersion }),
      ...(deletionTimestamp === undefined ? {} : { deletionTimestamp }),
      ...(answerBy === undefined ? {} : { annotations: { [ANSWER_BY_ANNOTATION]: answerBy } }),
    },
    spec: {},
    ...(status === undefined ? {} : { status }),
  };
}
