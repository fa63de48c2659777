/** The schemas of the forms, which the page reads once. */
import type { FormSchema } from '../model/form.ts';
import type { Api } from './api.ts';

/** Names of the forms. */
export type FormName = 'deploy' | 'change' | 'claim' | 'scale' | 'snapshot' | 'token';
export type Forms = Readonly<Record<FormName, FormSchema>>;

const READ_MILLISECONDS = 30_000;
/** The read of each user, under way or done. A read that failed is forgotten, so that the next form tries again. */
const reads = new WeakMap<Api, Promise<Forms>>();

/** Returns the schemas of the forms. @throws the same errors as {@link Api.get}. */
export async function readForms(api: Api): Promise<Forms> {
  const read = reads.get(api) ?? api.get<Forms>('/console/forms', AbortSignal.timeout(READ_MILLISECONDS));
  reads.set(api, read);
  try {
    return await read;
  } catch (error) {
    reads.delete(api);
    throw error;
  }
}

/** Returns the text of an error for people. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
