import { readFileSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir, totalmem } from 'node:os';
import { afterEach, expect, test, vi } from 'vitest';
import { hostFacts } from './facts.ts';

vi.mock(import('node:fs'), { spy: true });
vi.mock(import('node:os'), { spy: true });

afterEach(() => void vi.restoreAllMocks());

test.each([
  [
    'an agent as root offers all processors of the host, because machines run outside its control group',
    0,
    8,
  ],
  ['another agent offers the processors that it may use itself, because machines share its limits', 1000, 1],
])('%s', async (_, user, count) => {
  vi.spyOn(process, 'getuid').mockReturnValue(user);
  vi.mocked(availableParallelism).mockReturnValue(1);
  const [processor] = cpus();
  vi.mocked(cpus).mockReturnValue(Array.from({ length: 8 }, () => processor!));
  const facts = await hostFacts({ dataDirectory: tmpdir() }, 'qemu://kvm');
  expect(facts.cpus).toBe(count);
});

test.each([
  ['Hugetlb:         1048576 kB\n', 2 ** 30],
  ['Hugetlb:               0 kB\n', 0],
  // Kernels before 4.19 do not have the line.
  ['', 0],
])('huge pages are not offered, because machines get normal pages: %j', async (line, reserved) => {
  vi.mocked(readFileSync).mockReturnValue(
    `MemTotal:        8388608 kB\n${line}DirectMap4k:      309208 kB\n`,
  );
  vi.mocked(totalmem).mockReturnValue(8 * 2 ** 30);
  const facts = await hostFacts({ dataDirectory: tmpdir() }, 'qemu://kvm');
  expect(facts.memoryBytes).toBe(8 * 2 ** 30 - reserved);
});
