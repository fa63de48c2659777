/** A fact about a host, or the reason why it is not known. */
import { messageOf } from '../../base/errors.ts';

export type Fact<T> = { readonly known: T } | { readonly unknown: string };

/** Time limit of each program that tells a fact. The programs usually answer within milliseconds. */
export const PROGRAM = { timeoutMilliseconds: 10_000 };

/** Returns the fact that `read` reads. If a program, the system or the network fails, the result has the reason. */
export async function readFact<T>(read: () => Promise<T>): Promise<Fact<T>> {
  try {
    return { known: await read() };
  } catch (error) {
    return { unknown: messageOf(error) };
  }
}
