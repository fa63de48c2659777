/** How much of its host's disk a VM's Pod requests. The request counts from the Pod's making on: Kubernetes resizes no disk. */
import { divideUp, formatQuantity, parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { Resolved } from './resolve.ts';

/** The ratio is taken with six decimals, so that no rounding of fractions makes a request larger than it says. */
const RATIO_SCALE = 1_000_000n;
/** Requests are whole mebibytes: people read them. */
const MEBIBYTE = 2n ** 20n;

/** A quantity: the disk's size, which is never less than its image's, times `diskRequestRatio`. */
export function diskRequest(
  { diskSizeBytes, imageSizeBytes }: Pick<Resolved, 'diskSizeBytes' | 'imageSizeBytes'>,
  { defaults, diskRequestRatio }: Pick<OperatorConfig, 'defaults' | 'diskRequestRatio'>,
): string {
  const known = [diskSizeBytes, imageSizeBytes].filter((size) => size !== undefined);
  const sizeBytes =
    known.length === 0
      ? parseQuantity(defaults.diskRequest)
      : known.reduce((largest, size) => (size > largest ? size : largest));
  const ratio = BigInt(Math.round(diskRequestRatio * Number(RATIO_SCALE)));
  return formatQuantity(divideUp(sizeBytes * ratio, RATIO_SCALE * MEBIBYTE) * MEBIBYTE);
}
