/**
 * Collects the failed repairs of the NAT network. Repairs that concern all machines are kept apart from the repairs of each network
 * namespace.
 */
import type { Layout } from './layout.ts';
import { describeDifference, type Repair } from './plan.ts';

/**
 * Number of failed repairs that a message names. The length of a message is limited, and one cause can make the repairs of all machines
 * fail.
 */
const NAMED_FAILURES = 3;

/** Returns one message about failed repairs, with the first few repairs and the number of the other repairs. */
function describeFailures(failures: readonly string[]): string {
  const others = failures.length - NAMED_FAILURES;
  const rest = others > 0 ? [`Further failed repairs: ${others}`] : [];
  return [...failures.slice(0, NAMED_FAILURES), ...rest].join('; ');
}

export class Failures {
  readonly #layout: Layout;
  readonly #general: string[] = [];
  /** First failure of each namespace. The key is the name of the namespace's device. */
  readonly #namespaces = new Map<string, string>();

  constructor(layout: Layout) {
    this.#layout = layout;
  }

  /** Whether a failed repair concerns all machines. */
  get areGeneral(): boolean {
    return this.#general.length > 0;
  }

  /** Returns whether an earlier repair of the same namespace has failed. Further repairs of this namespace would fail, too. */
  precludes(repair: Repair): boolean {
    return 'device' in repair && this.#namespaces.has(repair.device);
  }

  /** Adds a failed repair with the reason. The failed repair of a namespace is kept apart, because it concerns no other machine. */
  add(repair: Repair, why: string): void {
    const failure = `${describeDifference(this.#layout, repair)}, and ${why}`;
    if ('device' in repair && repair.device.startsWith(this.#layout.namespaces.prefix)) {
      this.#namespaces.set(repair.device, failure);
    } else {
      this.#general.push(failure);
    }
  }

  /** Returns the messages about the failures: one for all machines, and one for each namespace. The key is the namespace's device. */
  described(): { failed: string | undefined; failedNamespaces: ReadonlyMap<string, string> } {
    const failed = this.areGeneral ? describeFailures(this.#general) : undefined;
    return { failed, failedNamespaces: this.#namespaces };
  }
}
