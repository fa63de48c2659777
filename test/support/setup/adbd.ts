/** Set-up of projects whose tests run the guest with Debian's adbd. */
import { adbdFiles } from '../../fixtures/images.ts';

export async function setup(): Promise<void> {
  // Most of the time goes into downloads.
  await Promise.all([adbdFiles('amd64'), adbdFiles('arm64')]);
}
