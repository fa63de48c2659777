/** Set-up of projects whose tests run the cloud image. Only root can make it, and without root these tests are skipped. */
import { cloudFile } from '../../fixtures/images.ts';

export async function setup(): Promise<void> {
  if (process.getuid?.() === 0) {
    await cloudFile();
  }
}
