import { expect, it } from 'vitest';
import type { Server, ServerHost } from '../../api/v1alpha1/server.ts';
import { parseConfig } from '../config/config.ts';
import { isLost, lostAt } from '../podbacked/observe.ts';
import { type HostReach, reachOfNode } from '../host/observe.ts';
import { withPower } from '../host/power.ts';

const OFF = '2030-01-01T12:00:00Z';
const ON = '2030-01-02T12:00:00Z';
const READY = reachOfNode({
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'host' },
  status: { conditions: [{ type: 'Ready', status: 'True', lastTransitionTime: OFF }] },
});
const config = parseConfig({ hostLostTimeoutSeconds: 600 }, 'test');

function reach(host: ServerHost | undefined, before: HostReach = READY): HostReach {
  return withPower(before, [{ metadata: { name: 'rack' }, status: { host } } as Server]);
}

it('a host that Berth switches off is silent at once, and never lost while it is off', () => {
  const off = reach({ cordonedAt: OFF, offAt: OFF });
  expect(off).toMatchObject({
    silentSince: Date.parse(OFF),
    powered: { server: 'rack', state: 'Off' },
  });
  expect(isLost({ ...off, config, now: Date.parse(ON) })).toBe(false);
});

it('the silence of a host that is on again counts from that time on', () => {
  const starting = reach({ offAt: OFF, onAt: ON }, { ...READY, silentSince: Date.parse(OFF) });
  expect(lostAt({ ...starting, config })).toBe(Date.parse(ON) + 600_000);
});

it('a host that is only cordoned, or that has no action of its Server, is as its Node says', () => {
  expect(reach({ cordonedAt: OFF }).silentSince).toBeUndefined();
  expect(reach(undefined)).toEqual({ ...READY, powered: undefined });
});
