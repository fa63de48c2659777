/** Set-up of projects whose tests run the guest with Debian's adbd. */
import { adbdFiles } from '../../fixtures/images.ts';

export async function setup(): Promise<void> {
  await adbdFiles('amd64');
  await adbdFiles('arm64');
}
