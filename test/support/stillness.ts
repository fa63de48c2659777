import { isDeepStrictEqual } from 'node:util';
import { waitFor, type WaitOptions } from '../../hack/wait.ts';

/** The operator holds a change of a status that nobody waits for back for half a second. Readings with this interval see it. */
const READINGS: WaitOptions = { intervalMilliseconds: 1_000 };

/** Returns the first reading that equals the one before. */
export async function untilStill<T>(read: () => Promise<T>, options = READINGS): Promise<T> {
  let last = await read();
  const isStill = async (): Promise<boolean> => {
    const before = last;
    last = await read();
    return isDeepStrictEqual(last, before);
  };
  await waitFor('nothing to change any more', isStill, options);
  return last;
}
