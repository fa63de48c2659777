/** Gives a Node that an agent created again what the earlier Node of the host had. All functions are pure. */
import { isDeepStrictEqual } from 'node:util';
import { type Awaited, awaitedOn, awaitedText } from '../../api/v1alpha1/awaited.ts';
import { AWAITED_ANNOTATION, HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import type { Node, Taint } from '../../kube/core.ts';
import { type HostRecord, NO_RECORD } from './records.ts';

/** Change of a Node, as a merge patch. */
interface NodeChange {
  readonly metadata: { readonly labels?: object; readonly annotations?: object };
  readonly spec?: { readonly taints?: readonly Taint[]; readonly unschedulable?: true };
}

/**
 * Returns the change that makes a Node a host, with what the earlier Node of the host had. The result is undefined if the Node already has
 * all of it. `earlier` is undefined if the Node is the same as before. `forced` are the VMs that need new Pods. Berth's own taints follow in a
 * later request, which comes before the slots.
 */
export function restoredNode(
  node: Node,
  earlier: HostRecord | undefined,
  forced: Awaited,
): NodeChange | undefined {
  const whole = wholeNode(node, earlier ?? NO_RECORD, forced);
  const { labels, annotations } = whole.metadata;
  const { taints = [], unschedulable } = whole.spec ?? {};
  const part = ({ metadata, spec = {} }: Node) => [
    metadata.labels ?? {},
    metadata.annotations ?? {},
    spec.taints ?? [],
    spec.unschedulable ?? false,
  ];
  return isDeepStrictEqual(part(node), part(whole))
    ? undefined
    : {
        metadata: { ...(labels && { labels }), ...(annotations && { annotations }) },
        spec: { taints, ...(unschedulable && { unschedulable }) },
      };
}

/** Returns the Node with all that it has and the earlier Node had. What both have with different values stays as in the Node. */
function wholeNode(node: Node, earlier: HostRecord, forced: Awaited): Node {
  const { metadata, spec = {} } = node;
  const present = spec.taints ?? [];
  const lost = earlier.taints.filter((taint) => !present.some((other) => sameKind(taint, other)));
  const awaited = { [AWAITED_ANNOTATION]: earlier.awaited ?? '{}' };
  const waiting = awaitedText({ ...awaitedOn({ metadata: { annotations: awaited } }), ...forced });
  return {
    ...node,
    metadata: {
      ...metadata,
      labels: { [HOST_MARK]: HOST_VALUE, ...earlier.labels, ...metadata.labels },
      annotations: { ...(waiting !== null && { [AWAITED_ANNOTATION]: waiting }), ...metadata.annotations },
    },
    spec: {
      ...spec,
      taints: [...present, ...lost],
      ...(earlier.unschedulable === true && { unschedulable: true }),
    },
  };
}

/** Returns true if the API server refuses to have both taints on one Node. */
function sameKind(a: Taint, b: Taint): boolean {
  return a.key === b.key && a.effect === b.effect;
}
