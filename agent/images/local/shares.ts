/**
 * The share of each tenant of the disk space for images. A tenant is a namespace. It can use free space without a limit, but more than half of
 * the space only as long as nobody else needs it. All functions are pure.
 */

/** Part of the space for images that one tenant can have while others need space. */
const TENANT_SHARE = 1 / 2;

/** Content on the disk, or space that is reserved for it. */
export interface Use {
  /** Namespaces whose Pods asked for the content. It counts in full for each of them. Empty if nobody knows them any more. */
  readonly tenants: readonly string[];
  readonly sizeBytes: number;
}

/** What all tenants use. */
export class Shares {
  readonly #used = new Map<string, number>();
  readonly #share: number;

  /** `capacityBytes` is the space for all images, used and free. */
  constructor(uses: readonly Use[], capacityBytes: number) {
    this.#share = capacityBytes * TENANT_SHARE;
    for (const { tenants, sizeBytes } of uses) {
      for (const tenant of tenants) {
        this.#used.set(tenant, (this.#used.get(tenant) ?? 0) + sizeBytes);
      }
    }
  }

  /** Returns the number of bytes that the tenant uses in excess of its share. */
  excess(tenant: string): number {
    return Math.max(0, (this.#used.get(tenant) ?? 0) - this.#share);
  }

  /**
   * Returns the content that may be removed for `tenant`, in the order of removal. `content` is in the order in which it would be removed if
   * there were no shares. Content of tenants with an excess comes first. A tenant with an excess removes nothing of tenants without one.
   */
  removable<T extends Use>(tenant: string, content: readonly T[]): T[] {
    const isOver = this.excess(tenant) > 0;
    return content
      .map((one) => ({ one, excess: this.#leastExcess(one, tenant) }))
      .filter(({ excess }) => !isOver || excess > 0)
      .toSorted((a, b) => b.excess - a.excess)
      .map(({ one }) => one);
  }

  /**
   * Returns the least excess of the tenants of this content. Content of nobody, and of `tenant` alone, belongs to no other tenant, so it
   * counts as the smallest excess.
   */
  #leastExcess({ tenants }: Use, tenant: string): number {
    const others = tenants.filter((one) => one !== tenant);
    const excesses = others.map((one) => this.excess(one));
    return others.length === 0 ? Number.MIN_VALUE : Math.min(...excesses);
  }
}

/** Returns the message for work of a tenant that ends because another tenant needs the space. */
export function overShare(tenant: string | undefined): string {
  return `Namespace ${tenant} uses more than half of the space for images of this host, and another namespace needs space`;
}
