import { expect, it } from 'vitest';
import type { GuestFilter } from '../../network/softnet.ts';
import { runArguments } from './arguments.ts';

const FOLDER = { uid: 'mac1', path: '/machines/mac1' };
const GUEST = { iso: undefined } as Parameters<typeof runArguments>[1]['guest'];

/** Returns the options of a guest with Linux whose packets are filtered so, after those that each machine has. */
function filterOptions(filter: GuestFilter | undefined): string[] {
  const plain = ['run', 'berth-mac1', '--no-graphics', '--no-audio', '--no-clipboard'];
  const all = runArguments(FOLDER, { seed: undefined, guest: GUEST }, { os: 'linux', filter });
  expect(all.slice(0, plain.length)).toEqual(plain);
  return all.slice(plain.length);
}

it('the packets of a guest are filtered as its network says, and its gateway always reaches it', () => {
  const mayNotReach = ['169.254.0.0/16', '10.1.2.0/24'];
  expect(filterOptions({ mayReach: ['10.1.0.0/16'], mayNotReach })).toEqual([
    '--net-softnet',
    '--net-softnet-allow',
    '@host,10.1.0.0/16',
    '--net-softnet-block',
    '169.254.0.0/16,10.1.2.0/24',
  ]);
  expect(filterOptions({ mayReach: [], mayNotReach: [] })).toEqual([
    '--net-softnet',
    '--net-softnet-allow',
    '@host',
  ]);
  expect(filterOptions(undefined)).toEqual([]);
});
