/**
 * What one look at the world says about a VM. Every step and the status are pure functions of this and the clock in it.
 */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMConfig } from '../../api/v1alpha1/vmconfig.ts';
import type { Node, Pod } from '../../kube/core.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { ResizeRefusal } from './size.ts';

export interface Observed {
  readonly vm: VM;
  /** The Pod of the VM's name that carries the VM's uid, whatever its owner reference says (an orphaned Pod has lost it). */
  readonly pod: Pod | undefined;
  /** Somebody else's Pod has the name: `namespace/name` of its owner, in words. */
  readonly nameTakenBy: string | undefined;
  /** The Node that the Pod is bound to; undefined when it is gone or the Pod is not bound. */
  readonly node: Node | undefined;
  /** The API server's last no to another size of the Pod, as long as it is not taken back. */
  readonly resizeRefused: ResizeRefusal | undefined;
  /** What `spec.configRef`, `image` and `iso` name, where they exist. */
  readonly lookups: Lookups;
  /** Holders of host ports in use elsewhere, for the message to a VM that waits for one: `8822/TCP` → `namespace/name`. */
  readonly portHolder: (port: string) => string | undefined;
  /** All Berth hosts. */
  readonly hosts: () => readonly Node[];
  readonly config: OperatorConfig;
  /** Milliseconds since the epoch. */
  readonly now: number;
  /** Of the namespace `kube-system`, which every cluster has from its first minute to its last. */
  readonly clusterUid: string;
  /** Random bytes as hex, for `hardwareIdentity: Dynamic`. */
  readonly random: () => string;
}

export interface Lookups {
  vmConfig(name: string, namespace: string): VMConfig | undefined;
  /** In the VM's namespace, then in the default one. */
  image(name: string): Image | undefined;
  iso(name: string): ISO | undefined;
}
