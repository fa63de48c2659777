/** Image stores of hosts, for tests. */
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { type AskedImage, HostImageStore, type HostImageStoreOptions } from '../../agent/images/store.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import { Keyring } from '../../agent/images/oci/credentials.ts';
import type { BaseImage } from '../../agent/disks/disk.ts';
import type { Holder } from '../../agent/images/local/holders.ts';
import { PASSWORD, type TestRegistry } from '../wires/registry.ts';

/**
 * Opens the store in a folder, with its existing content. `registries` are registries of tests, with the authorities of their
 * certificates.
 */
export async function openStore(
  dataDirectory: string,
  registries: readonly TestRegistry[],
  options: Partial<HostImageStoreOptions> = {},
): Promise<HostImageStore> {
  return await HostImageStore.open({
    dataDirectory,
    architecture: 'amd64',
    sharedRoots: [],
    allowLoopbackHttp: true,
    registries: registries.map(({ host, caFile }) => ({ host, caFile })),
    minimumFree: 0,
    metrics: new Registry(),
    logger: pino({ level: 'silent' }),
    ...options,
  });
}

/** Returns the keyring of a tenant with the registry's password, or with another password. */
export function keyringOf(registry: TestRegistry, password = PASSWORD): Keyring {
  return Keyring.parse([registry.dockerConfigJson(password)]);
}

export async function ensure(
  store: HostImageStore,
  source: MachineImageSource | string,
  holder: Holder,
  options: Partial<AskedImage> = {},
): Promise<BaseImage> {
  return await store.ensure(typeof source === 'string' ? { type: 'registry', reference: source } : source, {
    holder,
    tenant: 'team',
    onProgress: () => undefined,
    onWait: () => undefined,
    signal: new AbortController().signal,
    ...options,
  });
}
