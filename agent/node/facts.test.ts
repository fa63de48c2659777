import { availableParallelism, cpus, tmpdir } from 'node:os';
import { afterEach, expect, test, vi } from 'vitest';
import { hostFacts } from './facts.ts';

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
