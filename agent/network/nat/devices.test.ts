import { expect, test } from 'vitest';
import { parseUplinks } from './devices.ts';

/** Returns a line of /proc/net/route. */
function route(device: string, metric: number, target = '00000000', mask = '00000000'): string {
  return [device, target, '010200C0', '0003', 0, 0, metric, mask, 0, 0, 0].join('\t');
}

const HEADING = 'Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT';

test.each([
  ['one default route', [route('eth0', 100)], ['eth0']],
  ['no default route', [route('eth0', 0, '000200C0', '00FFFFFF')], []],
  [
    'a backup',
    [route('backup', 1000), route('eth0', 100), route('eth1', 0, '000200C0', '00FFFFFF')],
    ['eth0'],
  ],
  ['two equal ones', [route('eth0', 100), route('eth1', 100), route('eth0', 100)], ['eth0', 'eth1']],
])('only default routes of the lowest metric lead outside: %s', (_what, routes, uplinks) => {
  expect(parseUplinks(`${[HEADING, ...routes].join('\n')}\n`)).toEqual(uplinks);
});
