/**
 * Reads and writes the annotation `berth.dev/awaited-pods` of a Node. The operator lists in it the VMs on this host that are about to get a
 * new Pod, because somebody deleted their Pod by force. The host keeps their machines until the Pods are there.
 */
import * as z from 'zod';
import { parseDocument } from './machine.ts';
import { AWAITED_ANNOTATION } from './names.ts';

const awaitedSchema = z.record(
  z.string(),
  z.object({
    /** Key of the VM: `namespace/name`. */
    vm: z.string().regex(/^[^/]+\/[^/]+$/),
    /** Time when the operator began to wait, in RFC 3339. */
    since: z.iso.datetime(),
  }),
);

/** VMs that are about to get a new Pod. The key is the uid of the VM. */
export type Awaited = Readonly<z.infer<typeof awaitedSchema>>;

/** Returns the awaited VMs of a host. The result is empty if the annotation is missing or cannot be read. */
export function awaitedOn(node: { metadata: { annotations?: Record<string, string> } } | undefined): Awaited {
  return awaitedSchema.safeParse(parseDocument(node?.metadata.annotations?.[AWAITED_ANNOTATION])).data ?? {};
}

/** Returns the value of the annotation. It is null, which removes the annotation, if no VM is awaited. */
export function awaitedText(awaited: Awaited): string | null {
  return Object.keys(awaited).length === 0 ? null : JSON.stringify(awaited);
}
