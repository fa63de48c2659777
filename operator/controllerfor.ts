/** Creates the controllers of the operator. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { Controller, type ControllerOptions } from '../kube/controller.ts';

/**
 * Number of workers for objects that change rarely. There are several workers, so that a slow response for one object does not delay the
 * others.
 */
const FEW_WORKERS = 4;

/** Creates a controller that runs the reconciler. `own.ready` returns true if the cache contains this process's latest change for a key. */
export function controllerFor(
  { logger, registry }: { readonly logger: Logger; readonly registry: Registry },
  name: string,
  { workers = FEW_WORKERS, exists = () => true }: Pick<ControllerOptions, 'exists'> & { workers?: number },
  reconciler: Pick<ControllerOptions, 'reconcile'>,
  own: { ready: (key: string) => boolean } = { ready: () => true },
): Controller {
  const reconcile = reconciler.reconcile.bind(reconciler);
  const ready = own.ready.bind(own);
  return new Controller({ name, workers, reconcile, ready, exists, logger, metrics: registry });
}

/** Returns a function that tells whether one of the caches has an object for a key. */
export function existsIn(...informers: { readonly cache: { get(key: string): unknown } }[]) {
  return (key: string): boolean => informers.some(({ cache }) => cache.get(key) !== undefined);
}
