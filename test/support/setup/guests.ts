/** Set-up of projects whose tests run guests. */
import { guestFile } from '../../fixtures/images.ts';

export async function setup(): Promise<void> {
  await guestFile('amd64');
  await guestFile('arm64');
}
