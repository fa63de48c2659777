/** Reads kubeconfig files, and finds their entries. Of several files, the first one with an entry counts, as in kubectl. */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { type Context, newContexts } from '@kubernetes/client-node/dist/config_types.js';
import { parse } from 'yaml';
import { isMissing, messageOf, undefinedIf } from '../base/errors.ts';

export interface RawKubeconfig {
  /** Folder of the file. Relative paths in the file begin there. */
  folder: string;
  clusters?: unknown;
  contexts?: unknown;
  users?: unknown;
  'current-context'?: string;
}

/** Error when a kubeconfig lacks the requested context, or has no current context. */
export class ContextError extends Error {
  override readonly name = 'ContextError';
}

/** Returns the named context, or the current one. @throws ContextError when there is no such context. */
export function contextIn(raws: readonly RawKubeconfig[], shown: string, name: string | undefined): Context {
  const wanted = name ?? raws.map((raw) => raw['current-context']).find(Boolean);
  const { entry: context } = named(raws, ({ contexts }) => contexts, newContexts, wanted) ?? {};
  if (context === undefined) {
    throw new ContextError(
      wanted
        ? `kubeconfig ${shown}: there is no context ${JSON.stringify(wanted)}`
        : `kubeconfig ${shown}: there is no current context`,
    );
  }
  return context;
}

/**
 * Returns the content of the files. Missing files are left out, as in kubectl, if at least one of the files exists.
 *
 * @throws Error when no file exists, or when a file cannot be read.
 */
export async function readKubeconfigs(files: readonly string[]): Promise<RawKubeconfig[]> {
  const read = async (file: string): Promise<RawKubeconfig> => ({
    ...((parse(await readFile(file, 'utf8')) ?? {}) as object),
    folder: path.dirname(path.resolve(file)),
  });
  const found = await Promise.all(files.map(async (file) => await undefinedIf(isMissing, read(file))));
  const existing = found.filter((raw) => raw !== undefined);
  return existing.length > 0 ? existing : [await read(files[0] ?? '')];
}

/**
 * Returns the first entry with the name, and the file that has the entry. The result is undefined if there is no such entry. Only this
 * entry is parsed, because `kubectl config` also writes entries that are not complete.
 *
 * @throws Error when the entry is not complete.
 */
export function named<E>(
  raws: readonly RawKubeconfig[],
  listOf: (raw: RawKubeconfig) => unknown,
  parse: (list: unknown) => E[],
  name: string | undefined,
): { entry: E; raw: RawKubeconfig } | undefined {
  const parsed = (list: unknown[]): E[] => {
    try {
      return parse(list);
    } catch (error) {
      throw new Error(`kubeconfig: entry ${name}: ${messageOf(error)}`, { cause: error });
    }
  };
  for (const raw of raws) {
    const list = listOf(raw);
    const entries: ({ name?: unknown } | null)[] = Array.isArray(list) ? list : [];
    const [entry] = parsed(entries.filter((one) => name !== undefined && one?.name === name).slice(0, 1));
    if (entry !== undefined) {
      return { entry, raw };
    }
  }
  return undefined;
}
