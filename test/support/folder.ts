import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';

/** Makes an empty folder for the current test, which is removed when the test and its hooks have ended. */
export function makeFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'berth-test-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
