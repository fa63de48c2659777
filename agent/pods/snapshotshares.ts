/**
 * Bounds the space that the snapshots of one namespace take on a host. Nothing can be removed for others here, as unused images are, because
 * snapshots are data of users. So a snapshot that would exceed the share of its namespace is not taken at all.
 */
import { formatQuantity } from '../../api/v1alpha1/quantity.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { Shares, sizeOf, sum, type Use } from '../images/local/spacemeter.ts';

/** A snapshot that is about to be taken. */
export interface PlannedSnapshot {
  readonly tenant: string;
  /** Bytes of its memory. Its layer counts as soon as the guest no longer writes to it. */
  readonly bytes: number;
}

/** What a host has. */
export interface SnapshotSpace {
  /** Layers and memories of snapshots. The files to which guests write do not count. */
  readonly kept: readonly Use[];
  /** Bytes of the disk that are free beside `images.minimumFree`. */
  readonly freeBytes: number;
}

export class SnapshotShares {
  /** Snapshots that are being taken. They count, because their bytes are not there yet. */
  readonly #taking = new Set<Use>();

  /**
   * Runs `take`, which takes the snapshot.
   *
   * @throws ReasonedError `DiskFull` when the namespace would have more than its share: half of the space that snapshots have and that is free.
   */
  async within<T>(
    { tenant, bytes }: PlannedSnapshot,
    { kept, freeBytes }: SnapshotSpace,
    take: () => Promise<T>,
  ): Promise<T> {
    const planned = { tenants: [tenant], sizeBytes: bytes };
    const uses = [...kept, ...this.#taking, planned];
    const excess = new Shares(uses, sum(kept.map(sizeOf)) + freeBytes).excess(tenant);
    if (excess > 0) {
      const used = sum(uses.filter(({ tenants }) => tenants.includes(tenant)).map(sizeOf));
      const [all, before, share] = [bytes, used - bytes, used - excess].map((one) =>
        formatQuantity(Math.floor(one)),
      );
      // At most 120 characters of this message reach the VMSnapshot.
      throw new ReasonedError(
        'DiskFull',
        `Snapshots of the namespace take ${before} of their ${share} on the host. This one adds ${all}`,
      );
    }
    this.#taking.add(planned);
    try {
      return await take();
    } finally {
      this.#taking.delete(planned);
    }
  }
}
