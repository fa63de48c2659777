import { array, assert, integer, oneof, property, uniqueArray } from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { chunkSizeFor, chunksAtOnce, chunksOf, LAYER_LIMIT } from './disklayout.ts';

const SECTOR = 512;
const MIB = 1024 * 1024;
const GIB = 1024 * MIB;

describe('the chunks of a disk', () => {
  it('lie side by side within the disk, and cover all of its data', () => {
    assert(
      property(integer({ min: 1, max: 5000 }), integer({ min: 1, max: 100 }), (sectors, chunkSectors) => {
        const [virtualSize, chunkSize] = [sectors * SECTOR, chunkSectors * SECTOR];
        const map = Array.from(
          { length: Math.ceil(virtualSize / chunkSize) },
          (_, index): [number, number] => [index, 0],
        );
        let end = 0;
        for (const { offset, length } of chunksOf({ version: 1, virtualSize, chunkSize, map }, 1)) {
          expect(offset).toBe(end);
          expect(length).toBeGreaterThan(0);
          end = offset + length;
        }
        expect(end).toBe(virtualSize);
      }),
    );
  });

  it('never overlap and never leave the disk, in any map', () => {
    const chunkSize = MIB;
    // Some disks are smaller than their map requires, and some are larger.
    const sizes = integer({ min: 1, max: (400 * MIB) / SECTOR }).map((sectors) => sectors * SECTOR);
    const maps = uniqueArray(integer({ min: 0, max: 300 }), { maxLength: 50 });
    const sorted = maps.map((map) => map.toSorted((first, second) => first - second));
    const layers = array(integer({ min: 0, max: 5 }), { maxLength: 50 });
    assert(
      property(sizes, oneof(maps, sorted), layers, (virtualSize, map, layerOf) => {
        const pairs = map.map((index, at): [number, number] => [index, layerOf[at] ?? 0]);
        const chunks = chunksOrRefusal({ version: 1, virtualSize, chunkSize, map: pairs }, 4);
        if (!Array.isArray(chunks)) {
          expect(chunks).toMatchObject({ reason: 'ImageInvalid' });
          return;
        }
        let end = 0;
        for (const chunk of chunks) {
          expect(chunk.offset).toBeGreaterThanOrEqual(end);
          expect(chunk.length).toBeGreaterThan(0);
          expect(chunk.layer).toBeLessThan(4);
          end = chunk.offset + chunk.length;
        }
        expect(end).toBeLessThanOrEqual(virtualSize);
      }),
      { numRuns: 500 },
    );
  });

  function chunksOrRefusal(...of: Parameters<typeof chunksOf>): ReturnType<typeof chunksOf> | ReasonedError {
    try {
      return chunksOf(...of);
    } catch (error) {
      if (error instanceof ReasonedError) {
        return error;
      }
      throw error;
    }
  }

  it('are few enough for a manifest, and those in memory are small enough', () => {
    for (const virtualSize of [GIB, 100 * GIB, 128 * GIB, 129 * GIB, 1024 * GIB]) {
      const chunkSize = chunkSizeFor(virtualSize);
      expect(virtualSize / chunkSize).toBeLessThanOrEqual(LAYER_LIMIT);
      expect(chunksAtOnce(chunkSize) * chunkSize).toBeLessThanOrEqual(128 * MIB);
    }
    expect([chunkSizeFor(128 * GIB), chunkSizeFor(129 * GIB)]).toEqual([16 * MIB, 64 * MIB]);
  });
});
