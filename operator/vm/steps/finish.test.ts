import { describe, expect, it } from 'vitest';
import { ANSWER_BY_ANNOTATION } from '../../../api/v1alpha1/names.ts';
import { parseConfig } from '../../config/config.ts';
import { untilNextDeadline } from '../deadlines.ts';
import type { Facts } from '../facts.ts';
import type { Observed } from '../observe.ts';
import { finish } from './finish.ts';

const FACTS: Facts = {
  firstRunningTime: '2030-01-01T00:00:00Z',
  attempt: 1,
  avoidedNodes: [],
  failure: undefined,
};
const UNTIL = '2030-01-01T01:00:00Z';

/** Returns a running VM with the annotation, at `now`. */
function observed(answerBy: string, now: string): Observed {
  const vm = {
    metadata: { name: 'x', annotations: { [ANSWER_BY_ANNOTATION]: answerBy } },
    spec: {},
    status: { firstRunningTime: FACTS.firstRunningTime },
  };
  return { vm, config: parseConfig({}, 'test'), now: Date.parse(now) } as unknown as Observed;
}

describe('a VM whose deployer waits for an answer', () => {
  it('is deleted once the time has passed, although it runs', () => {
    const [write] = finish(observed(UNTIL, UNTIL), FACTS).writes;
    expect(write).toEqual({ kind: 'deleteVM', unansweredSince: Date.parse(UNTIL) });
  });

  it('stays until then, and is looked at again at that time', () => {
    const before = observed('2030-01-01T02:00:00+01:00', '2030-01-01T00:59:59.250Z');
    expect(finish(before, FACTS).writes).toEqual([]);
    expect(untilNextDeadline(before, FACTS)).toBe(750);
  });

  it.each(['', '0', 'soon', '2029', '2029-02-30T00:00:00Z'])('stays if the time is no time: "%s"', (text) => {
    expect(finish(observed(text, '2031-01-01T00:00:00Z'), FACTS).writes).toEqual([]);
  });
});
