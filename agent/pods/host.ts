/** What the work on machines needs of its host. */
import type { Logger } from 'pino';
import type { Pod } from '../../kube/core.ts';
import type { EventText } from '../../kube/events.ts';
import type { KubeObject } from '../../kube/objects.ts';
import type { Driver } from '../drivers/driver.ts';
import type { Keyring } from '../images/registry/credentials.ts';
import type { ImageStore } from '../images/store.ts';
import type { Network } from '../network/network.ts';
import type { HostCapacity } from './admission.ts';
import type { NetworkMonitor } from './networkmonitor.ts';
import type { RecordStore } from './record.ts';

export interface Host {
  readonly driver: Driver;
  readonly network: Network;
  readonly monitor: NetworkMonitor;
  readonly images: ImageStore;
  readonly records: RecordStore;
  readonly bootId: string;
  /** Published as the Pods' hostIP. */
  readonly address: string;
  /** Where this host itself reaches its reserved ports. */
  readonly forwardAddress: string;
  /** `<data directory>/machines` */
  readonly machinesDirectory: string;
  readonly logger: Logger;
  /** As known now: slots come from the Node. */
  capacity(): HostCapacity;
  /** Which accelerator runs machines of an architecture. */
  accelerator(architecture: 'amd64' | 'arm64' | undefined): string | undefined;
  /** The Lease is overdue. */
  fenced(): boolean;
  event(regarding: KubeObject, text: EventText): void;
  /** What the pull secrets of a Pod open. Throws ImageError `PullSecretMissing`. */
  keyring(pod: Readonly<Pod>): Promise<Keyring>;
}
