/** Order of the files of a project on a machine that has not run them before. */
import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/**
 * Files that take more than 40 s, the longest first. They begin first, so that no worker waits alone for the last of them. vitest estimates
 * the time by the size of a file, but these files wait for guests, time limits and other programs.
 */
export const LONGEST: readonly string[] = [
  'test/e2e/guest/cloud.test.ts',
  'test/e2e/emulator/emulator.test.ts',
  'test/e2e/images/actions.test.ts',
  'test/e2e/images/images.test.ts',
  'test/e2e/vm/life.test.ts',
  'test/e2e/qemu/copy.test.ts',
  'test/e2e/hosts/quota.test.ts',
  'test/e2e/vm/idle.test.ts',
  'test/e2e/installed/helm.test.ts',
  'test/e2e/installed/upgrade.test.ts',
  'test/faults/agent-crash.test.ts',
  'test/integration/operator-imagecache-fleet.test.ts',
  'test/hostile/openapi.test.ts',
  'test/hostile/disk.test.ts',
  'test/hostile/logs.test.ts',
  'test/integration/server-failures.test.ts',
  'test/integration/operator-imagecache.test.ts',
  'test/e2e/vm/command.test.ts',
  'test/e2e/vm/endings.test.ts',
  'test/e2e/images/faults.test.ts',
  'test/e2e/qemu/qemu.test.ts',
  'test/chart/install.test.ts',
  'test/hostile/server.test.ts',
  'test/integration/operator-images-removal.test.ts',
  'test/integration/server-load.test.ts',
  'test/images/formats.test.ts',
];

function rank({ moduleId, project }: TestSpecification): number {
  const found = LONGEST.indexOf(relative(project.config.root, moduleId));
  return found < 0 ? LONGEST.length : found;
}

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const group = ({ project }: TestSpecification): number => project.config.sequence.groupOrder;
    return sorted.toSorted((a, b) => group(a) - group(b) || rank(a) - rank(b));
  }
}
