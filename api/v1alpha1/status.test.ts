import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { imageCacheEntryStatusSchema } from './imagecacheentry.ts';
import { boundStatus, keepEnd } from './status.ts';
import { type VMStatus, vmStatusSchema } from './vmstatus.ts';

const condition = {
  type: 'Ready',
  status: 'False',
  reason: 'StartFailed',
  lastTransitionTime: '2026-01-01T00:00:00Z',
} as const;

describe('boundStatus', () => {
  it('keeps the end of a text that is too long, at any depth', () => {
    const log = `${'x'.repeat(40_000)}the last words`;
    const status = boundStatus(vmStatusSchema, {
      phase: 'Failed',
      conditions: [{ ...condition, message: log }],
      image: { digest: log },
    });
    expect(status.conditions?.[0]?.message).toHaveLength(32_768);
    expect(status.conditions?.[0]?.message.endsWith('the last words')).toBe(true);
    expect(status.image?.digest).toBe(log.slice(-256));
    expect(status.phase).toBe('Failed');
  });

  it('keeps the start of a list that is too long, and cuts its elements', () => {
    const nodes = Array.from({ length: 5000 }, (_, n) => ({
      node: `n${n}`,
      state: 'Failed',
      message: 'm'.repeat(300),
    }));
    const status = boundStatus(imageCacheEntryStatusSchema, { nodes });
    expect(status.nodes).toHaveLength(4096);
    expect(status.nodes?.[0]).toEqual({ node: 'n0', state: 'Failed', message: 'm'.repeat(256) });
  });

  it('changes nothing within its bounds, and removes undefined fields', () => {
    const status: VMStatus = { phase: 'Running', conditions: [{ ...condition, message: '' }], attempt: 0 };
    expect(boundStatus(vmStatusSchema, status)).toEqual(status);
    expect(Object.keys(boundStatus(vmStatusSchema, { phase: 'Running', nodeName: undefined }))).toEqual([
      'phase',
    ]);
  });

  it('makes every text fit the schema', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', maxLength: 400 }), (text) => {
        const bounded = boundStatus(vmStatusSchema, { phase: text, nodeName: text, addresses: [text] });
        expect(vmStatusSchema.safeParse(bounded).success).toBe(true);
      }),
    );
  });
});

describe('keepEnd', () => {
  it('never keeps half of a character', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), fc.nat(20), (text, maximum) => {
        const kept = keepEnd(text, maximum);
        expect(kept.length).toBeLessThanOrEqual(maximum);
        expect(text.endsWith(kept)).toBe(true);
        expect(kept.isWellFormed()).toBe(true);
      }),
    );
  });
});
