import { expect, it } from 'vitest';
import { run } from './exec.ts';

const NAMES_AT_ONCE = 32;

it.runIf(process.platform === 'linux')(
  'there are more than 64 threads, because names without an answer can take 32 of them',
  async () => {
    const script = `
    import '${import.meta.dirname}/threads.ts';
    import { lookup } from 'node:dns';
    import { readdirSync } from 'node:fs';
    lookup('localhost', () => process.stdout.write(String(readdirSync('/proc/self/task').length)));
  `;
    const threads = await run(process.execPath, ['--input-type=module', '-e', script], {
      timeoutMilliseconds: 30_000,
    });
    expect(Number(threads)).toBeGreaterThan(2 * NAMES_AT_ONCE);
  },
);
