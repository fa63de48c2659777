import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { makeFolder } from '../../test/support/folder.ts';
import { countLeases, readLeases } from './leases.ts';

const NOW = Date.parse('2030-01-01T00:00:00Z');

/** Returns the text of a lease that ends `seconds` from now. */
function lease(address: string, seconds: number): string {
  const end = (NOW / 1000 + seconds).toString(16);
  const lines = ['name=mac', `ip_address=${address}`, 'hw_address=1,2:0:0:0:0:1', `lease=0x${end}`];
  return `{\n${lines.map((line) => `\t${line}\n`).join('')}}\n`;
}

it('counts the addresses of the fullest network that no new guest gets, each once', () => {
  const text = [
    lease('192.168.64.2', 60),
    lease('192.168.64.3', 30),
    lease('192.168.64.3', 90),
    lease('192.168.64.4', -1),
    lease('192.168.65.2', 600),
  ].join('');
  expect(countLeases(text, NOW)).toEqual({ taken: 2, all: 253, nextEnd: NOW + 30_000 });
});

it('leaves out entries that it cannot read', () => {
  const broken = '{\n\tip_address=192.168.64.9\n}\n{\n\tlease=0xffffffff\n}\n{ip_address=\0 lease=0x';
  expect(countLeases(broken, NOW)).toEqual({ taken: 0, all: 253, nextEnd: undefined });
});

it('reads the file of the host, if there is one', async () => {
  const path = join(makeFolder(), 'dhcpd_leases');
  expect(await readLeases(path, NOW)).toBeUndefined();
  await writeFile(path, lease('192.168.64.2', 60));
  expect(await readLeases(path, NOW)).toMatchObject({ taken: 1 });
});
