/**
 * Admits requests by what they hold of one resource of the server, for example places of waiting requests or bytes of bodies. Each user has a
 * share of the resource, so that one user cannot take all of it.
 */
import type { StatusError } from './errors.ts';

interface ShareLimits {
  /** Largest amount that one user can hold. */
  readonly user: number;
  /** Largest amount that all users together can hold. */
  readonly total: number;
  /** Returns the refusal for a user who would hold more than the own share. */
  readonly refuseUser: (user: string) => StatusError;
  /** Returns the refusal while all users together would hold more than the total. */
  readonly refuseAll: () => StatusError;
}

export class UserShares {
  readonly #limits: ShareLimits;
  /** Amounts by user. Users who hold nothing are not in the map. */
  readonly #held = new Map<string, number>();
  #total = 0;

  constructor(limits: ShareLimits) {
    this.#limits = limits;
  }

  /** Counts a further amount for the user until {@link release}. @throws StatusError from the limits */
  take(user: string, amount: number): void {
    this.check(user, amount);
    this.#count(user, amount);
  }

  /** @throws StatusError if the user may not hold a further amount. */
  check(user: string, amount: number): void {
    const { user: share, total, refuseUser, refuseAll } = this.#limits;
    if ((this.#held.get(user) ?? 0) + amount > share) {
      throw refuseUser(user);
    }
    if (this.#total + amount > total) {
      throw refuseAll();
    }
  }

  release(user: string, amount: number): void {
    this.#count(user, -amount);
  }

  #count(user: string, amount: number): void {
    this.#total += amount;
    const held = (this.#held.get(user) ?? 0) + amount;
    if (held === 0) {
      this.#held.delete(user);
    } else {
      this.#held.set(user, held);
    }
  }
}
