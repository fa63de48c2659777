/** Set-up of projects whose tests run the cloud images. Only root can make them, and without root these tests are skipped. */
import { cloudFile } from '../../fixtures/images.ts';

export async function setup(): Promise<void> {
  if (process.getuid?.() === 0) {
    await cloudFile('amd64');
    await cloudFile('arm64');
  }
}
