/** Reads and changes the values of a ConfigMap that might not exist yet. */
import type { KubeClient } from './client.ts';
import { CONFIG_MAPS } from './core.ts';
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
  const patched = await unlessMissing(client.mergePatch(CONFIG_MAPS, ref, { data }));
  if (patched !== undefined) {
    return;
  }
  const present = Object.entries(data).filter((one): one is [string, string] => one[1] !== null);
  try {
    await client.create(CONFIG_MAPS, { metadata: ref, data: Object.fromEntries(present) });
  } catch (error) {
    if (!isAlreadyExists(error)) {
      throw error;
    }
    // The ConfigMap did not exist when the patch was sent, but somebody else has created it since. Therefore the patch is sent again.
    await client.mergePatch(CONFIG_MAPS, ref, { data });
  }
}
