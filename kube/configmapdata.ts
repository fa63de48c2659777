/** Reads and changes the values of a ConfigMap that might not exist yet. */
import { undefinedIf } from '../base/errors.ts';
import type { KubeClient, WriteOptions } from './client.ts';
import { CONFIG_MAPS, type ConfigMap } from './core.ts';
import { isAlreadyExists, unlessMissing } from './errors.ts';

/** Reference to a ConfigMap. */
interface ConfigMapRef {
  namespace: string;
  name: string;
}

/** Returns the values of a ConfigMap. If it does not exist, the result is empty. @throws ApiError when the API server refuses. */
export async function readData(
  client: KubeClient,
  ref: ConfigMapRef,
): Promise<Readonly<Record<string, string>>> {
  return (await unlessMissing(client.get(CONFIG_MAPS, ref)))?.data ?? {};
}

/**
 * Writes only the given values. The ConfigMap keeps its other values, so two callers can change different values at the same time. The
 * value null removes a key.
 *
 * @throws ApiError when the API server refuses.
 */
export async function writeData(
  client: KubeClient,
  ref: ConfigMapRef,
  data: Readonly<Record<string, string | null>>,
): Promise<void> {
  const present = Object.entries(data).filter((one): one is [string, string] => one[1] !== null);
  await patchOrCreate(client, ref, { data }, Object.fromEntries(present));
}

/**
 * Applies the merge patch to a ConfigMap, or creates the ConfigMap with `data` if it does not exist. Returns the stored ConfigMap.
 *
 * @throws ApiError when the API server refuses.
 */
export async function patchOrCreate(
  client: KubeClient,
  ref: ConfigMapRef,
  patch: object,
  data: Record<string, string>,
  options: Pick<WriteOptions, 'fieldManager'> = {},
): Promise<ConfigMap> {
  const patched = async () => await client.mergePatch(CONFIG_MAPS, ref, patch, options);
  return (
    (await unlessMissing(patched())) ??
    (await undefinedIf(isAlreadyExists, client.create(CONFIG_MAPS, { metadata: ref, data }, options))) ??
    // The ConfigMap did not exist when the patch was sent, but somebody else has created it since. Therefore the patch is sent again.
    (await patched())
  );
}
